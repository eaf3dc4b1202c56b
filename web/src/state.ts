// What this tab knows: the conversations, the one on screen, and what it asked for and was not answered yet. Commands are actions.ts.
import { batch, computed, signal } from "@preact/signals";
import { listConversations, type Opened, openConversation, type Page, Refused } from "./api.ts";
import { Chat } from "./chat.ts";
import type { ClientEvent, Conversation, CreateResponse, ErrorBody, ServerEvent } from "./protocol.ts";
import { Connection } from "./socket.ts";

export interface InitialState {
  user: { name: string };
  language: string;
  words: Record<string, string>;
  conversations: Page;
  current: Opened | null;
}

interface Asked {
  frame: CreateResponse;
  chat: Chat;
  /** Stop was pressed before the run had a name. */
  cancelled?: boolean;
}

export class State {
  readonly user = signal({ name: "" });
  readonly conversations = signal<readonly Conversation[]>([]);
  readonly nextCursor = signal<string | null>(null);
  readonly chat = signal(new Chat(null));
  readonly problem = signal<ErrorBody | null>(null); // of the chat on screen as a whole
  readonly hidden = signal<ReadonlySet<string>>(new Set()); // deleted, but "undo" is still offered
  readonly writing = signal<ReadonlySet<string>>(new Set()); // conversations in which an answer is being written
  readonly current = computed(() => this.conversations.value.find(({ id }) => id === this.chat.value.id));
  readonly listed = computed(() => this.conversations.value.filter(({ id }) => !this.hidden.value.has(id)));
  readonly asked = new Map<string, Asked>();
  readonly connection: Connection;
  private readonly chats = new Map<string, Chat>();
  onConversation: (id: string) => void = () => undefined; // the chat on screen got its id
  onSignedOut: () => void = () => undefined;
  private greetings = 0;

  constructor(url: string) {
    this.connection = new Connection(url, {
      opened: () => this.opened(),
      event: (event) => batch(() => this.event(event)),
      signedOut: () => this.onSignedOut(),
    });
  }

  begin(initial: InitialState): void {
    this.user.value = initial.user;
    this.addConversations(initial.conversations);
    if (initial.current) this.show(initial.current.conversation.id, initial.current);
    this.connection.start();
  }

  send(event: ClientEvent): void {
    this.connection.send(event);
  }

  /** A request that is sent again after every reconnection until it is answered; its client_id makes that harmless. */
  ask(chat: Chat, frame: CreateResponse): void {
    this.asked.set(frame.client_id, { frame, chat });
    this.connection.send(frame);
  }

  addConversations(page: Page): void {
    this.conversations.value = newestFirst([...page.data, ...this.conversations.peek()]);
    this.nextCursor.value = page.next_cursor;
  }

  /** The top of the list as it is now: while this tab was not listening some may have gone. */
  private async refreshList(): Promise<void> {
    const before = new Set(this.conversations.peek().map(({ id }) => id));
    const page = await listConversations(null).catch(() => null);
    if (!page) return; // the next connection tries again
    const still = new Set(page.data.map(({ id }) => id));
    const last = page.next_cursor === null ? "" : (page.data.at(-1)?.updated_at ?? "");
    const kept = this.conversations.peek().filter(({ id, updated_at }) => still.has(id) || !before.has(id) || updated_at < last);
    this.conversations.value = newestFirst([...page.data, ...kept]);
  }

  /** Brings a conversation to the screen; null is a new one. */
  show(id: string | null, opened?: Opened): void {
    const before = this.chat.peek();
    const chat = id === null ? new Chat(null) : (this.chats.get(id) ?? new Chat(id));
    if (chat === before) return;
    if (before.id && !before.writing.peek()) this.leave(before.id); // a run is followed to its end, for the mark in the list
    if (id !== null) this.chats.set(id, chat);
    this.problem.value = null;
    this.chat.value = chat;
    if (opened) this.take(chat, opened);
    if (id !== null) void this.load(chat, opened !== undefined);
  }

  /** The last messages of the chat, as far back as its leaf, and then its events from there on. `known`: the page came with them. */
  async load(chat: Chat, known = false): Promise<void> {
    if ((await this.reload(chat, known)) && this.chat.peek() === chat) this.subscribe(chat);
  }

  private async reload(chat: Chat, known = false): Promise<boolean> {
    if (chat.id === null) return false;
    try {
      if (!known) this.take(chat, await openConversation(chat.id));
      while (chat.earlier.peek() && chat.path.peek().length === 0) await this.loadEarlier(chat);
      return true;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (this.chat.peek() === chat) this.problem.value = error.error;
      return false;
    }
  }

  async loadEarlier(chat: Chat): Promise<void> {
    const oldest = chat.places.peek()[0];
    if (!oldest || chat.id === null) return;
    const { items, has_more } = await openConversation(chat.id, oldest.id);
    batch(() => {
      chat.merge(items);
      chat.earlier.value = has_more;
    });
  }

  private take(chat: Chat, { conversation, items, has_more }: Opened): void {
    batch(() => {
      this.conversations.value = newestFirst([conversation, ...this.conversations.peek()]);
      chat.merge(items, conversation.active_leaf_id);
      if (!chat.loaded) chat.earlier.value = has_more;
      chat.loaded = true;
    });
  }

  private leave(id: string): void {
    this.send({ type: "conversation.unsubscribe", conversation_id: id });
  }

  private subscribe(chat: Chat): void {
    if (chat.id === null) return;
    const running = [...chat.runs.values()].find((run) => run.last > 0 && chat.tree.peek().get(run.itemId)?.message.peek().status === "in_progress");
    const after = running && { after: { response_id: running.responseId, sequence_number: running.last } };
    this.send({ type: "conversation.subscribe", conversation_id: chat.id, ...after });
  }

  private opened(): void {
    for (const { frame } of this.asked.values()) this.send(frame);
    const chat = this.chat.peek();
    if (this.greetings++ > 0) void this.load(chat); // while we were away anything may have happened
    else if (chat.loaded) this.subscribe(chat);
    void this.refreshList();
  }

  private event(event: ServerEvent): void {
    switch (event.type) {
      case "conversation.created":
        this.adopt(event.conversation, event.in_reply_to);
        break;
      case "conversation.updated":
        this.conversations.value = newestFirst([event.conversation, ...this.conversations.peek()]);
        break;
      case "conversation.deleted":
        this.forget(event.conversation_id);
        break;
      case "conversation.item.added":
      case "conversation.item.updated": {
        const { item, client_id, in_reply_to } = event;
        this.chats.get(item.conversation_id)?.add(item, client_id ?? in_reply_to);
        if (item.role === "assistant") this.mark(item.conversation_id, item.status === "in_progress");
        break;
      }
      case "conversation.subscribed": {
        const chat = this.chats.get(event.conversation_id);
        if (chat?.subscribed(event.runs) === "stale") void this.reload(chat);
        break;
      }
      case "error":
        this.refused(event.error);
        break;
      default:
        if ("response_id" in event) this.ofRun(event);
    }
  }

  private ofRun(event: Extract<ServerEvent, { response_id: string }>): void {
    const chat = this.chats.get(event.conversation_id);
    if (event.type === "response.created") {
      const asked = this.asked.get(event.client_id ?? "");
      if (asked?.cancelled) this.send({ type: "response.cancel", response_id: event.response_id });
      this.asked.delete(event.client_id ?? "");
    }
    if (chat?.apply(event) === "gap" && chat === this.chat.peek()) this.subscribe(chat);
    if (!chat) return;
    const writing = chat.writing.peek() !== undefined;
    this.mark(event.conversation_id, writing);
    if (!writing && chat !== this.chat.peek()) this.leave(event.conversation_id);
  }

  /** A conversation we asked for, or one of another tab. */
  private adopt(conversation: Conversation, replyTo: string | null | undefined): void {
    this.conversations.value = newestFirst([conversation, ...this.conversations.peek()]);
    const asked = replyTo ? this.asked.get(replyTo) : undefined;
    if (!asked || asked.chat.id !== null) return;
    asked.chat.id = conversation.id;
    asked.chat.loaded = true;
    this.chats.set(conversation.id, asked.chat);
    if (this.chat.peek() === asked.chat) this.onConversation(conversation.id);
  }

  private refused(error: ErrorBody): void {
    const asked = this.asked.get(error.event_id ?? "");
    if (!asked || !error.event_id) return;
    this.asked.delete(error.event_id);
    const { frame, chat } = asked;
    if (frame.continue) chat.refuseResume(frame.continue, error);
    else chat.refuse(error.event_id, error);
  }

  forget(id: string): void {
    this.conversations.value = this.conversations.peek().filter((conversation) => conversation.id !== id);
    this.hidden.value = new Set([...this.hidden.peek()].filter((hidden) => hidden !== id));
    this.chats.delete(id);
    if (this.chat.peek().id === id) this.show(null);
  }

  private mark(id: string, isWriting: boolean): void {
    if (this.writing.peek().has(id) === isWriting) return;
    const writing = new Set(this.writing.peek());
    if (isWriting) writing.add(id);
    else writing.delete(id);
    this.writing.value = writing;
  }
}

/** One of each, the newer revision of two, by last change. */
function newestFirst(conversations: readonly Conversation[]): Conversation[] {
  const byId = new Map<string, Conversation>();
  for (const conversation of conversations) {
    if (conversation.temporary) continue; // another client's, and not for a list
    const known = byId.get(conversation.id);
    if (!known || known.revision < conversation.revision) byId.set(conversation.id, conversation);
  }
  return [...byId.values()].sort((a, b) => b.updated_at.localeCompare(a.updated_at));
}
