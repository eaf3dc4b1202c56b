// The one WebSocket of a tab: it opens it, opens it again, and passes events on. What they mean is app state's business (state.ts).
import { signal } from "@preact/signals";
import type { ClientEvent, ServerEvent } from "./protocol.ts";

const PROTOCOL = "hamdam.v1";
const FIRST_WAIT = 400; // ms, doubled each time
const LONGEST_WAIT = 10_000;
const SIGNED_OUT = 4401;
const DISABLED = 4403;

export interface Listener {
  /** The socket is open and greeted: say again what the server has to know of this tab. */
  opened(): void;
  event(event: ServerEvent): void;
  /** The right to be here is gone. */
  signedOut(): void;
}

export class Connection {
  readonly lost = signal(false); // for long enough to say so
  private socket: WebSocket | null = null;
  private greeted = false;
  private failures = 0;
  private pause = 0; // ms that a server which restarts asked us to wait
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly url: string,
    private readonly listener: Listener,
  ) {}

  start(): void {
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.hurry());
    this.open();
  }

  /** Sends now, or not at all: who needs more says it again in `opened`. */
  send(event: ClientEvent): boolean {
    if (!this.greeted || this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(event));
    return true;
  }

  private hurry(): void {
    if (this.socket) return;
    clearTimeout(this.timer);
    this.open();
  }

  private open(): void {
    const socket = new WebSocket(this.url, PROTOCOL);
    this.socket = socket;
    socket.addEventListener("message", ({ data }) => this.received(JSON.parse(String(data)) as ServerEvent));
    socket.addEventListener("close", ({ code }) => this.closed(socket, code));
  }

  private received(event: ServerEvent): void {
    if (event.type === "session.created") {
      this.greeted = true;
      this.failures = this.pause = 0;
      this.lost.value = false;
      this.listener.event(event);
      this.listener.opened();
    } else if (event.type === "server.draining") this.pause = event.reconnect_after_ms;
    else this.listener.event(event);
  }

  private closed(socket: WebSocket, code: number): void {
    if (this.socket !== socket) return;
    this.socket = null;
    this.greeted = false;
    if (code === SIGNED_OUT || code === DISABLED) return this.listener.signedOut();
    this.failures += 1;
    if (this.failures > 1) this.lost.value = true;
    if (this.failures === 3) void this.stillSignedIn(); // a refused upgrade tells a page nothing, so ask
    const wait = Math.max(this.pause, Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** (this.failures - 1)));
    this.timer = setTimeout(() => this.open(), wait * (0.5 + Math.random() / 2)); // apart from the others after a restart
  }

  private async stillSignedIn(): Promise<void> {
    const answer = await fetch("/api/me").catch(() => null);
    if (answer?.status === 401) this.listener.signedOut();
  }
}
