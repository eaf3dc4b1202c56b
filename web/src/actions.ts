// What a reader can do: ask, stop, edit, try again, continue, rename, delete. Each changes the page at once and then tells the server.
import { batch } from "@preact/signals";
import { changeConversation, deleteConversation, listConversations, Refused, signOut } from "./api.ts";
import { type Chat, ECHO, type Message, type Place } from "./chat.ts";
import { forgetDraft } from "./drafts.ts";
import type { CreateResponse } from "./protocol.ts";
import type { State } from "./state.ts";

const UNDO_MS = 7000;
const ANOTHER = 0.7; // the temperature of another answer: the model's best one is there already

export interface Deleted {
  id: string;
  title: string;
}

/** Random enough to be unique per person; `crypto.randomUUID` is missing on plain http. */
function newClientId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Actions {
  private deletion: { id: string; timer: ReturnType<typeof setTimeout> } | null = null;

  constructor(
    private readonly state: State,
    private readonly goTo: (id: string | null, replace?: boolean) => void,
    private readonly offerUndo: (deleted: Deleted | null) => void,
  ) {
    addEventListener("pagehide", () => this.finishDeletion());
  }

  /** A question under the newest message on screen. */
  send(text: string): void {
    const chat = this.state.chat.peek();
    this.askUnder(chat, chat.path.peek().findLast(({ message }) => message.peek().saved === "yes")?.id ?? null, text);
  }

  /** The question in other words: a branch beside it. */
  edit(place: Place, text: string): void {
    this.askUnder(this.state.chat.peek(), place.parent_id, text);
  }

  /** Another answer to the same question. */
  regenerate(place: Place): void {
    const chat = this.state.chat.peek();
    if (place.message.peek().saved === "refused") chat.drop(place.id);
    this.askUnder(chat, place.parent_id, null);
  }

  /** A question that was refused, sent again. */
  resend(place: Place): void {
    const chat = this.state.chat.peek();
    chat.drop(place.id);
    this.askUnder(chat, place.parent_id, place.message.peek().text);
  }

  continueAnswer(place: Place): void {
    const chat = this.state.chat.peek();
    if (chat.id === null) return;
    const client_id = newClientId();
    chat.resume(place);
    this.state.ask(chat, { type: "response.create", event_id: client_id, client_id, conversation_id: chat.id, continue: place.id });
  }

  private askUnder(chat: Chat, parent: string | null, text: string | null): void {
    const client_id = newClientId();
    chat.echo(client_id, parent, text);
    const where = chat.id === null ? { conversation: {} } : { conversation_id: chat.id, parent_id: parent };
    const input = text === null ? { sampling: { temperature: ANOTHER } } : { input: [{ type: "message", role: "user", content: [{ type: "input_text", text }] }] satisfies CreateResponse["input"] };
    this.state.ask(chat, { type: "response.create", event_id: client_id, client_id, ...where, ...input });
  }

  stop(): void {
    const chat = this.state.chat.peek();
    const writing = chat.writing.peek();
    if (!writing) return;
    const asked = [...this.state.asked.values()].find((one) => one.chat === chat);
    if (asked) asked.cancelled = true;
    const run = [...chat.runs.values()].findLast(({ itemId }) => itemId === writing.id);
    if (run) this.state.send({ type: "response.cancel", response_id: run.responseId });
  }

  /** Shows the branch that goes through `place`, here and wherever the conversation is opened next. */
  chooseBranch(place: Place): void {
    const chat = this.state.chat.peek();
    const leaf = chat.tree.peek().leafBelow(place.id);
    chat.leaf.value = leaf;
    if (chat.id !== null && !leaf.startsWith(ECHO)) void this.quietly(changeConversation(chat.id, { active_leaf_id: leaf }));
  }

  async rename(id: string, title: string): Promise<void> {
    const before = this.state.conversations.peek();
    this.state.conversations.value = before.map((one) => (one.id === id ? { ...one, title } : one));
    if (!(await this.quietly(changeConversation(id, { title })))) this.state.conversations.value = before;
  }

  /** Gone from the page at once, from the server when the offer to undo has run out. */
  delete(deleted: Deleted): void {
    this.finishDeletion();
    batch(() => {
      this.state.hidden.value = new Set([...this.state.hidden.peek(), deleted.id]);
      if (this.state.chat.peek().id === deleted.id) this.goTo(null);
    });
    this.deletion = { id: deleted.id, timer: setTimeout(() => this.finishDeletion(), UNDO_MS) };
    this.offerUndo(deleted);
  }

  undoDelete({ id }: Deleted): void {
    if (this.deletion?.id !== id) return;
    clearTimeout(this.deletion.timer);
    this.deletion = null;
    this.state.hidden.value = new Set([...this.state.hidden.peek()].filter((hidden) => hidden !== id));
    this.offerUndo(null);
  }

  private finishDeletion(): void {
    if (!this.deletion) return;
    const { id, timer } = this.deletion;
    clearTimeout(timer);
    this.deletion = null;
    this.offerUndo(null);
    void this.quietly(deleteConversation(id)).then((gone) => {
      if (gone) forgetDraft(id);
      if (gone) this.state.forget(id);
      else this.state.hidden.value = new Set([...this.state.hidden.peek()].filter((hidden) => hidden !== id));
    });
  }

  async showOlder(): Promise<void> {
    try {
      this.state.addConversations(await listConversations(this.state.nextCursor.peek()));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }

  async signOut(): Promise<void> {
    this.finishDeletion();
    if (await this.quietly(signOut())) location.assign("/sign-in");
  }

  /** For what the reader sees anyway when it did not happen. */
  private async quietly(work: Promise<unknown>): Promise<boolean> {
    try {
      await work;
      return true;
    } catch (error) {
      if (error instanceof Refused) return error.error.code.endsWith("not_found");
      throw error;
    }
  }
}

export const canContinue = ({ role, status, text, reasoning }: Message): boolean =>
  role === "assistant" && text + reasoning !== "" && (status === "interrupted" || status === "incomplete" || status === "cancelled");
