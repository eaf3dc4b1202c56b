// What a tab shows of a conversation: the server's messages and the runs' events put together, by the client rule of the protocol.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Chat, ECHO } from "../../web/src/chat.ts";
import type { Item, NumberedEvent, RunEvent } from "../../web/src/protocol.ts";

const item = (id: string, parent_id: string | null, role: Item["role"], fields: Partial<Item> = {}): Item => ({
  id, conversation_id: "conv", parent_id, role, status: "completed", text: id, created_at: "2025-01-01T00:00:00Z", ...fields,
});

const OF_RUN = { response_id: "resp", conversation_id: "conv" };
const created: RunEvent = { ...OF_RUN, type: "response.created", item_id: "a", sequence_number: 1 };
const started: RunEvent = { ...OF_RUN, type: "response.in_progress", input_tokens: 3, cached_tokens: 0, sequence_number: 2 };
const delta = (text: string, number: number, from_seq?: number): RunEvent => ({
  ...OF_RUN, type: "response.output_text.delta", item_id: "a", delta: text, sequence_number: number, ...(from_seq ? { from_seq } : {}),
});
const completed = (number: number): NumberedEvent => ({ ...OF_RUN, type: "response.completed", sequence_number: number });

function asked(): Chat {
  const chat = new Chat("conv");
  chat.merge([item("q", null, "user"), item("a", "q", "assistant", { text: "", status: "in_progress" })], "a");
  return chat;
}

const shown = (chat: Chat) => chat.path.value.map(({ message }) => message.value.text);

test("g04 an answer grows by its deltas, in pieces of any size", () => {
  const chat = asked();
  for (const event of [created, started, delta("One", 3), delta(" two three", 5, 4), completed(6)]) assert.equal(chat.apply(event), "ok");
  assert.deepEqual(shown(chat), ["q", "One two three"]);
  assert.equal(chat.writing.value, undefined);
});

test("g04 what was seen already is dropped", () => {
  const chat = asked();
  for (const event of [created, started, delta("One", 3), delta("One", 3), delta("xx", 3, 2)]) assert.equal(chat.apply(event), "ok");
  assert.deepEqual(shown(chat), ["q", "One"]);
});

test("g04 a gap is noticed and nothing is put in its place", () => {
  const chat = asked();
  for (const event of [created, started, delta("One", 3)]) chat.apply(event);
  assert.equal(chat.apply(delta(" three", 5)), "gap");
  assert.deepEqual(shown(chat), ["q", "One"]);
  assert.equal(chat.apply(delta(" two", 4)), "ok");
});

test("g04 a snapshot replaces the text and deltas go on from there", () => {
  const chat = asked();
  chat.apply({ ...OF_RUN, type: "response.snapshot", item_id: "a", text: "One two", status: "in_progress", sequence_number: 9 });
  assert.equal(chat.apply(delta(" three", 10)), "ok");
  assert.deepEqual(shown(chat), ["q", "One two three"]);
});

test("g04 after a restart the server's text counts, also where it is shorter", () => {
  const chat = asked();
  for (const event of [created, started, delta("One two three", 3), delta(" four", 4)]) chat.apply(event);
  chat.apply({ ...OF_RUN, type: "response.snapshot", item_id: "a", text: "One two", status: "interrupted", sequence_number: 2 });
  assert.equal(chat.apply({ ...OF_RUN, type: "response.interrupted", sequence_number: 3 }), "ok");
  assert.deepEqual(shown(chat), ["q", "One two"]);
  assert.equal(chat.path.value.at(-1)?.message.value.status, "interrupted");
});

test("g04 an answer that ended between the list of messages and the subscription is noticed", () => {
  const chat = asked();
  assert.equal(chat.subscribed([]), "stale");
  assert.equal(chat.subscribed([{ response_id: "resp", item_id: "a", status: "in_progress", sequence_number: 7 }]), "ok");
});

test("g04 an old list of messages does not undo what streamed meanwhile", () => {
  const chat = asked();
  for (const event of [created, started, delta("One two", 3)]) chat.apply(event);
  chat.merge([item("q", null, "user"), item("a", "q", "assistant", { text: "One", status: "in_progress" })], "a");
  assert.deepEqual(shown(chat), ["q", "One two"]);
});

test("g04 a list of messages from before the end does not undo the end", () => {
  const chat = asked();
  for (const event of [created, started, delta("One", 3), completed(4)]) chat.apply(event);
  chat.merge([item("a", "q", "assistant", { text: "One", status: "in_progress", response_id: "resp" })]);
  assert.equal(chat.writing.value, undefined);
  chat.merge([item("a", "q", "assistant", { text: "One", status: "in_progress", response_id: "resp_2" })]);
  assert.notEqual(chat.writing.value, undefined); // but another tab may let it go on
});

test("an echo becomes the server's message without being built again", () => {
  const chat = new Chat(null);
  chat.echo("c1", null, "Hello");
  const [question, answer] = chat.path.value;
  assert.equal(question?.message.value.saved, "pending");
  chat.add(item("q", null, "user", { text: "Hello" }), "c1");
  chat.add(item("a", "q", "assistant", { text: "", status: "in_progress" }), "c1");
  assert.deepEqual(chat.path.value.map(({ id }) => id), ["q", "a"]);
  assert.deepEqual(chat.path.value.map(({ key }) => key), [question?.key, answer?.key]);
  assert.equal(chat.path.value[0]?.message, question?.message);
  assert.equal(chat.path.value[0]?.message.value.saved, "yes");
});

test("a message of another tab is followed when it belongs to what is on screen", () => {
  const chat = asked();
  chat.apply(created);
  chat.add(item("q2", "a", "user"), null);
  chat.add(item("a2", "q2", "assistant"), null);
  assert.deepEqual(chat.path.value.map(({ id }) => id), ["q", "a", "q2", "a2"]);
});

test("a refused question stays with its reason and its empty answer goes", () => {
  const chat = asked();
  chat.echo("c1", "a", "More");
  chat.refuse("c1", { code: "queue_full", message: "" });
  assert.deepEqual(shown(chat), ["q", "", "More"]);
  const question = chat.path.value.at(-1);
  assert.equal(question?.message.value.saved, "refused");
  assert.equal(question?.message.value.error?.code, "queue_full");
  chat.drop(question?.id ?? "");
  assert.deepEqual(chat.path.value.map(({ id }) => id), ["q", "a"]);
});

test("another answer stands beside the first and each way leads to its own end", () => {
  const chat = new Chat("conv");
  chat.merge([item("q", null, "user"), item("a", "q", "assistant"), item("q2", "a", "user"), item("a2", "q2", "assistant")], "a2");
  chat.echo("c1", "q", null);
  assert.equal(chat.leaf.value, `${ECHO}c1:answer`);
  chat.add(item("b", "q", "assistant", { text: "", status: "in_progress" }), "c1");
  const tree = chat.tree.value;
  assert.deepEqual(tree.siblings(tree.get("a") as never).map(({ id }) => id), ["a", "b"]);
  assert.deepEqual(chat.path.value.map(({ id }) => id), ["q", "b"]);
  assert.equal(tree.leafBelow("a"), "a2");
});

test("older messages come in before what was there", () => {
  const chat = new Chat("conv");
  chat.merge([item("q2", "a", "user"), item("a2", "q2", "assistant")], "a2");
  assert.deepEqual(chat.path.value.map(({ id }) => id), ["q2", "a2"]);
  chat.merge([item("q", null, "user"), item("a", "q", "assistant")]);
  assert.deepEqual(chat.path.value.map(({ id }) => id), ["q", "a", "q2", "a2"]);
  assert.deepEqual(chat.places.value.map(({ id }) => id), ["q", "a", "q2", "a2"]);
});

test("an answer that goes on keeps the text it has", () => {
  const chat = new Chat("conv");
  chat.merge([item("q", null, "user"), item("a", "q", "assistant", { text: "One", status: "interrupted" })], "a");
  const place = chat.path.value.at(-1);
  assert.ok(place);
  chat.resume(place);
  for (const event of [created, started, delta(" two", 3), completed(4)]) chat.apply(event);
  assert.deepEqual(shown(chat), ["q", "One two"]);
});

test("what the model thinks grows apart from its answer, and a snapshot and a stored message bring both", () => {
  const chat = asked();
  const thought = { ...OF_RUN, type: "response.reasoning_text.delta", item_id: "a", delta: "Hm, ", sequence_number: 3 } as const;
  const done = { ...OF_RUN, type: "response.reasoning_text.done", item_id: "a", text: "Hm, so.", sequence_number: 5 } as const;
  for (const event of [created, started, thought, { ...thought, delta: "so.", sequence_number: 4 }, done, delta("Yes", 6)]) assert.equal(chat.apply(event), "ok");
  const answer = () => chat.path.value[1]?.message.value;
  assert.deepEqual([answer()?.reasoning, answer()?.text], ["Hm, so.", "Yes"]);
  chat.apply({ ...OF_RUN, type: "response.snapshot", item_id: "a", text: "Yes, b", reasoning_text: "Hm", status: "in_progress", sequence_number: 9 });
  assert.deepEqual([answer()?.reasoning, answer()?.text], ["Hm", "Yes, b"]);
  const later = new Chat("conv");
  later.merge([item("q", null, "user"), item("a", "q", "assistant", { reasoning_text: "Hm" })], "a");
  assert.equal(later.path.value[1]?.message.value.reasoning, "Hm");
});

test("a call is shown when it is whole, and what came of it is a message of its own", () => {
  const chat = asked();
  const call = { call_id: "c", name: "f", arguments: "{}" };
  const half = { ...OF_RUN, type: "response.function_call_arguments.delta", item_id: "a", delta: "{}", sequence_number: 3 } as const;
  const whole = { ...OF_RUN, type: "response.function_call_arguments.done", item_id: "a", ...call, sequence_number: 4 } as const;
  for (const event of [created, started, half, whole, completed(5)]) assert.equal(chat.apply(event), "ok");
  assert.deepEqual(chat.path.value[1]?.message.value.calls, [call]);
  const outputs = [{ call_id: "c", output: "31" }];
  const later = new Chat("conv");
  later.merge([item("q", null, "user"), item("a", "q", "assistant", { function_calls: [call] }), item("t", "a", "tool", { outputs })], "t");
  assert.deepEqual(later.path.value[1]?.message.value.calls, [call]);
  assert.deepEqual(later.path.value[2]?.message.value.outputs, outputs);
});
