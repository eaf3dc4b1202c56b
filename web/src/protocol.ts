// The events of the WebSocket protocol and the answers of the HTTP interface beside it, as the pages use them. Types only.

export type Status = "in_progress" | "completed" | "incomplete" | "cancelled" | "failed" | "interrupted";

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  input_tokens_details?: { cached_tokens: number };
}

export interface Timings {
  queue_ms: number;
  ttft_ms: number;
  total_ms: number;
  tps: number;
}

export interface ErrorBody {
  code: string;
  message: string;
  event_id?: string | null;
  retry_after_ms?: number | null;
  response_id?: string | null;
}

export interface FunctionCall {
  call_id: string;
  name: string;
  arguments: string;
}

export interface FunctionCallOutput {
  call_id: string;
  output: string;
}

export interface Item {
  id: string;
  conversation_id: string;
  parent_id: string | null;
  role: "user" | "assistant" | "system" | "tool";
  status: Status;
  text: string;
  reasoning_text?: string;
  function_calls?: FunctionCall[];
  outputs?: FunctionCallOutput[];
  usage?: Usage | null;
  timings?: Timings | null;
  error?: ErrorBody | null;
  response_id?: string | null; // the run that writes it, or wrote it last
  created_at: string;
}

export interface Conversation {
  id: string;
  title: string;
  active_leaf_id: string | null;
  revision: number;
  temporary: boolean;
  created_at: string;
  updated_at: string;
}

export interface RunState {
  response_id: string;
  item_id: string;
  status: Status;
  sequence_number: number;
}

interface OfRun {
  response_id: string;
  conversation_id: string;
}

interface Numbered extends OfRun {
  sequence_number: number;
  from_seq?: number | null;
}

type EndFields = Numbered & { usage?: Usage | null; timings?: Timings | null; reason?: string | null; error?: ErrorBody | null };

export type NumberedEvent =
  | ({ type: "response.created"; client_id?: string | null; item_id?: string } & Numbered)
  | ({ type: "response.in_progress"; input_tokens: number; cached_tokens: number } & Numbered)
  | ({ type: "response.output_text.delta" | "response.reasoning_text.delta"; item_id: string; delta: string } & Numbered)
  | ({ type: "response.output_text.done" | "response.reasoning_text.done"; item_id: string; text: string } & Numbered)
  | ({ type: "response.function_call_arguments.delta"; item_id: string; delta: string } & Numbered)
  | ({ type: "response.function_call_arguments.done"; item_id: string } & FunctionCall & Numbered)
  | ({ type: "response.completed" | "response.incomplete" | "response.cancelled" | "response.failed" | "response.interrupted" } & EndFields);

export type SnapshotEvent = { type: "response.snapshot"; item_id: string; text: string; reasoning_text: string; function_calls?: FunctionCall[]; status: Status; sequence_number: number } & OfRun;

export type RunEvent =
  | NumberedEvent
  | SnapshotEvent
  | ({ type: "response.queued"; position: number; eta_ms?: number | null } & OfRun)
  | ({ type: "response.prefill"; done: number; total: number } & OfRun)
  | ({ type: "response.stats"; tps: number; output_tokens: number } & OfRun);

export type ServerEvent =
  | RunEvent
  | { type: "session.created"; boot_id: string }
  | { type: "server.draining"; reconnect_after_ms: number }
  | { type: "conversation.subscribed"; conversation_id: string; revision: number; runs: RunState[] }
  | { type: "conversation.created" | "conversation.updated"; conversation: Conversation; in_reply_to?: string | null }
  | { type: "conversation.deleted"; conversation_id: string }
  | { type: "conversation.item.added" | "conversation.item.updated"; item: Item; client_id?: string | null; in_reply_to?: string | null }
  | { type: "error"; error: ErrorBody };

export interface CreateResponse {
  type: "response.create";
  event_id: string;
  client_id: string;
  conversation_id?: string;
  conversation?: Record<string, never>;
  parent_id?: string | null;
  sampling?: { temperature: number };
  input?: { type: "message"; role: "user"; content: { type: "input_text"; text: string }[] }[];
  continue?: string;
}

export type ClientEvent =
  | CreateResponse
  | { type: "conversation.subscribe"; conversation_id: string; after?: { response_id: string; sequence_number: number } }
  | { type: "conversation.unsubscribe"; conversation_id: string }
  | { type: "response.cancel"; response_id: string };

export const ENDS: Record<string, Status> = {
  "response.completed": "completed",
  "response.incomplete": "incomplete",
  "response.cancelled": "cancelled",
  "response.failed": "failed",
  "response.interrupted": "interrupted",
};
