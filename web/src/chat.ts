// One conversation as the page holds it: its tree of messages and the runs that write in it. It applies events; it sends none (actions.ts).
import { computed, type Signal, signal } from "@preact/signals";
import { ENDS, type ErrorBody, type FunctionCall, type FunctionCallOutput, type Item, type RunEvent, type RunState, type Status, type Timings, type Usage } from "./protocol.ts";
import { RunCursor } from "./run.ts";
import { type Node, Tree } from "./tree.ts";

export interface Progress {
  kind: "queued" | "prefill";
  position?: number;
  etaMs?: number | null;
  share?: number;
}

export interface Message {
  readonly id: string;
  readonly role: Item["role"];
  readonly text: string;
  /** What the model thought before it answered. */
  readonly reasoning: string;
  /** The calls of tools that it makes; of a message of role tool, what came of them. */
  readonly calls: readonly FunctionCall[];
  readonly outputs?: readonly FunctionCallOutput[] | undefined;
  readonly status: Status;
  /** Whether the server has it. A question that was refused is kept, so that nothing written is lost. */
  readonly saved: "yes" | "pending" | "refused";
  readonly usage?: Usage | null | undefined;
  readonly timings?: Timings | null | undefined;
  readonly error?: ErrorBody | null | undefined;
  readonly progress?: Progress | undefined;
}

/** A place in the tree. `key` stays when the server gives the message its id, so nothing on the page is built again. */
export interface Place extends Node {
  readonly key: string;
  readonly message: Signal<Message>;
}

export const ECHO = "local:"; // ids of messages that the server does not know yet

export class Chat {
  readonly places = signal<readonly Place[]>([]);
  readonly leaf = signal<string | null>(null);
  readonly earlier = signal(false); // there are older messages that were not loaded
  readonly tree = computed(() => new Tree(this.places.value));
  readonly path = computed(() => this.tree.value.path(this.leaf.value));
  /** The answer that is being written, on whichever branch: there is one at a time. */
  readonly writing = computed(() => this.places.value.map((place) => place.message.value).find((m) => m.role === "assistant" && m.status === "in_progress"));
  readonly runs = new Map<string, RunCursor>();
  loaded = false;

  constructor(public id: string | null) {}

  /** What the server says about messages, oldest first. Its word counts, except for a text that a run here is ahead of. */
  merge(items: readonly Item[], leaf?: string | null): void {
    const known = new Map(this.places.peek().map((place) => [place.id, place]));
    const added: Place[] = [];
    for (const item of items) {
      const place = known.get(item.id);
      if (place) this.refresh(place, item);
      else added.push({ id: item.id, parent_id: item.parent_id, key: item.id, message: signal(messageOf(item)) });
    }
    if (added.length) this.places.value = inOrder([...this.places.peek(), ...added], items);
    if (leaf !== undefined && leaf !== null && !this.leaf.peek()?.startsWith(ECHO)) this.leaf.value = leaf;
  }

  private refresh(place: Place, item: Item): void {
    const now = place.message.peek();
    const run = [...this.runs.values()].find(({ itemId, responseId, last }) => itemId === item.id && last > 0 && responseId === (item.response_id ?? responseId));
    // A list of messages takes its time: the run may have gone on since, or even have come to its end.
    const ahead = run !== undefined && (now.status === "in_progress" || item.status === "in_progress");
    place.message.value = ahead ? { ...now, saved: "yes" } : { ...messageOf(item), progress: now.progress };
  }

  /** The question and the empty answer at once, before the server knows of them. */
  echo(clientId: string, parent: string | null, question: string | null): void {
    let under = parent;
    const added: Place[] = [];
    if (question !== null) {
      under = `${ECHO}${clientId}`;
      added.push(pending(under, parent, { role: "user", text: question, status: "completed" }));
    }
    const answer = `${ECHO}${clientId}:answer`;
    added.push(pending(answer, under, { role: "assistant", text: "", status: "in_progress" }));
    this.places.value = [...this.places.peek(), ...added];
    this.leaf.value = answer;
  }

  /** A message of the server's: one we echoed gets its real id, any other is new. */
  add(item: Item, clientId: string | null | undefined): void {
    const echo = clientId ? `${ECHO}${clientId}${item.role === "assistant" ? ":answer" : ""}` : null;
    const place = this.places.peek().find(({ id }) => id === echo);
    if (!place) {
      const follow = item.parent_id === null ? this.places.peek().length === 0 : this.path.peek().some(({ id }) => id === item.parent_id);
      this.merge([item]);
      if (follow && !this.leaf.peek()?.startsWith(ECHO)) this.leaf.value = item.id;
      return;
    }
    place.message.value = { ...place.message.peek(), ...(item.role === "user" ? messageOf(item) : { id: item.id, saved: "yes" }) };
    this.places.value = this.places.peek().map((other) => {
      if (other === place) return { ...place, id: item.id, parent_id: item.parent_id };
      return other.parent_id === echo ? { ...other, parent_id: item.id } : other;
    });
    if (this.leaf.peek() === echo) this.leaf.value = item.id;
  }

  /** The server said no to what was echoed: the question stays with the reason, the empty answer goes. */
  refuse(clientId: string, error: ErrorBody): void {
    const question = this.places.peek().find(({ id }) => id === `${ECHO}${clientId}`);
    const answer = this.places.peek().find(({ id }) => id === `${ECHO}${clientId}:answer`);
    if (!question) {
      if (answer) answer.message.value = { ...answer.message.peek(), status: "failed", saved: "refused", error };
      return;
    }
    question.message.value = { ...question.message.peek(), saved: "refused", error };
    if (answer) this.places.value = this.places.peek().filter((place) => place !== answer);
    if (this.leaf.peek() === answer?.id) this.leaf.value = question.id;
  }

  /** An answer that was cut goes on. */
  resume({ message }: Place): void {
    message.value = { ...message.peek(), status: "in_progress", error: null };
  }

  /** …or does not: what there is of it stays, with the reason. */
  refuseResume(id: string, error: ErrorBody): void {
    const message = this.tree.peek().get(id)?.message;
    if (message) message.value = { ...message.peek(), status: "interrupted", error };
  }

  drop(id: string): void {
    const place = this.tree.peek().get(id);
    if (!place) return;
    if (this.path.peek().includes(place)) this.leaf.value = place.parent_id;
    this.places.value = this.places.peek().filter((other) => other !== place && other.parent_id !== id);
  }

  bind(responseId: string, itemId: string): RunCursor {
    const run = this.runs.get(responseId) ?? new RunCursor(responseId, itemId);
    this.runs.set(responseId, run);
    return run;
  }

  /** What runs, as the server says on subscribing. "stale": an answer ended between the list of messages and now. */
  subscribed(runs: readonly RunState[]): "ok" | "stale" {
    for (const run of runs) this.bind(run.response_id, run.item_id);
    const written = new Set(runs.map(({ item_id }) => item_id));
    const messages = this.places.peek().map(({ message }) => message.peek());
    return messages.some(({ id, status, saved }) => status === "in_progress" && saved === "yes" && !written.has(id)) ? "stale" : "ok";
  }

  /** Applies an event of a run. "gap": something is missing, subscribe again. */
  apply(event: RunEvent): "ok" | "gap" {
    const run = "item_id" in event && event.item_id ? this.bind(event.response_id, event.item_id) : this.runs.get(event.response_id);
    const place = run && this.tree.peek().get(run.itemId);
    if (!run || !place) return "ok"; // of a branch that is not loaded: its text comes with the messages
    const { message } = place;
    const now = message.peek();
    if (event.type === "response.queued") message.value = { ...now, progress: { kind: "queued", position: event.position, etaMs: event.eta_ms ?? null } };
    else if (event.type === "response.prefill") message.value = { ...now, progress: { kind: "prefill", share: event.done / Math.max(1, event.total) } };
    else if (event.type === "response.stats") return "ok";
    else if (event.type === "response.snapshot") {
      if (run.takeSnapshot(event.sequence_number, event.status !== "in_progress") === "apply") {
        message.value = { ...now, text: event.text, reasoning: event.reasoning_text, calls: event.function_calls ?? [], status: event.status, progress: undefined };
      }
    } else {
      const verdict = run.take(event.sequence_number, event.from_seq ?? event.sequence_number);
      if (verdict !== "apply") return verdict === "gap" ? "gap" : "ok";
      message.value = after(now, event);
    }
    return "ok";
  }
}

function after(now: Message, event: Exclude<RunEvent, { type: "response.queued" | "response.prefill" | "response.stats" | "response.snapshot" }>): Message {
  switch (event.type) {
    case "response.created":
      return { ...now, status: "in_progress", error: null };
    case "response.in_progress":
      return { ...now, progress: { kind: "prefill", share: event.cached_tokens / Math.max(1, event.input_tokens) } };
    case "response.reasoning_text.delta":
      return { ...now, reasoning: now.reasoning + event.delta, progress: undefined };
    case "response.reasoning_text.done":
      return { ...now, reasoning: event.text };
    case "response.function_call_arguments.delta":
      return now; // a call is shown when it is whole
    case "response.function_call_arguments.done":
      return { ...now, calls: [...now.calls, { call_id: event.call_id, name: event.name, arguments: event.arguments }], progress: undefined };
    case "response.output_text.delta":
      return { ...now, text: now.text + event.delta, progress: undefined };
    case "response.output_text.done":
      return { ...now, text: event.text };
    default:
      return { ...now, status: ENDS[event.type] ?? "failed", usage: event.usage, timings: event.timings, error: event.error, progress: undefined };
  }
}

function messageOf(item: Item): Message {
  const { id, role, text, status, usage, timings, error, outputs } = item;
  return { id, role, text, reasoning: item.reasoning_text ?? "", calls: item.function_calls ?? [], outputs, status, usage, timings, error, saved: "yes" };
}

function pending(id: string, parent_id: string | null, fields: Pick<Message, "role" | "text" | "status">): Place {
  return { id, parent_id, key: id, message: signal({ id, saved: "pending", reasoning: "", calls: [], ...fields }) };
}

/** Creation order: a page of older messages goes before what was there. */
function inOrder(places: Place[], items: readonly Item[]): Place[] {
  const rank = new Map(items.map(({ id }, i) => [id, i]));
  const known = places.filter(({ id }) => !rank.has(id));
  const page = places.filter(({ id }) => rank.has(id)).sort((a, b) => (rank.get(a.id) ?? 0) - (rank.get(b.id) ?? 0));
  const older = page.length > 0 && known.some(({ parent_id }) => parent_id !== null && rank.has(parent_id));
  return older ? [...page, ...known] : [...known, ...page];
}
