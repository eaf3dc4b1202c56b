// The HTTP interface beside the socket: lists, one conversation, its title, its end. It keeps no state.
import type { Conversation, ErrorBody, Item } from "./protocol.ts";

export class Refused extends Error {
  constructor(readonly error: ErrorBody, readonly status: number) {
    super(error.message);
  }
}

export interface Page {
  data: Conversation[];
  next_cursor: string | null;
}

export interface Opened {
  conversation: Conversation;
  items: Item[];
  has_more: boolean;
}

const PAGE = 30; // messages at a time

async function call<T>(method: string, path: string, body?: unknown, keepalive = false): Promise<T> {
  let answer: Response;
  try {
    const json = body === undefined ? {} : { headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    answer = await fetch(path, { method, keepalive, ...json });
  } catch {
    throw new Refused({ code: "offline", message: "" }, 0);
  }
  const text = await answer.text();
  const value = text ? (JSON.parse(text) as { error?: ErrorBody }) : {};
  if (!answer.ok) throw new Refused(value.error ?? { code: "internal", message: "" }, answer.status);
  return value as T;
}

const at = (id: string) => `/api/conversations/${encodeURIComponent(id)}`;

export const listConversations = (cursor: string | null) => call<Page>("GET", `/api/conversations${cursor ? `?cursor=${encodeURIComponent(cursor)}` : ""}`);
export const openConversation = (id: string, before?: string) => call<Opened>("GET", `${at(id)}?limit=${PAGE}${before ? `&before=${encodeURIComponent(before)}` : ""}`);
export const changeConversation = (id: string, changes: { title?: string; active_leaf_id?: string }) => call<unknown>("PATCH", at(id), changes);
export const deleteConversation = (id: string) => call<unknown>("DELETE", at(id), undefined, true); // also while the page goes away
export const signOut = () => call<unknown>("POST", "/api/sign-out");
