// How texts are read: their direction, the sentences that are spoken, the dates they stand under.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Announcer } from "../../web/src/announcer.ts";
import { byDate } from "../../web/src/dates.ts";
import { directionOf, GrowingDirection } from "../../web/src/direction.ts";
import { duration, speak, t } from "../../web/src/i18n.ts";
import type { Conversation } from "../../web/src/protocol.ts";

test("a message reads the way most of its letters do, and a third of Persian is enough", () => {
  assert.equal(directionOf("Just English, with سلام in it"), "ltr");
  assert.equal(directionOf("سلام دنیا"), "rtl");
  assert.equal(directionOf("در Python از FastAPI و uvicorn استفاده کنید"), "rtl");
  assert.equal(directionOf("שלום"), "rtl");
});

test("code, addresses and maths do not count", () => {
  assert.equal(directionOf("این:\n```js\nconst aLongEnglishIdentifier = anotherOne(withArguments);\n```\n"), "rtl");
  assert.equal(directionOf("ببین https://example.org/a/very/long/english/address?with=arguments"), "rtl");
  assert.equal(directionOf("بزن `npm run build --workspace=everything --verbose`"), "rtl");
  assert.equal(directionOf("فایل src/server/chat/gateway.py را ببین"), "rtl");
  assert.equal(directionOf("حاصل $$\\alpha \\beta \\gamma \\delta \\epsilon$$"), "rtl");
});

test("a text without letters reads like what it answers", () => {
  assert.equal(directionOf("123", "rtl"), "rtl");
  assert.equal(directionOf("", "ltr"), "ltr");
});

test("a growing answer starts like its question, is decided once and then stays", () => {
  const direction = new GrowingDirection("rtl");
  assert.equal(direction.of("API"), "rtl");
  assert.equal(direction.of("API is an English word, and there is more"), "ltr");
  assert.equal(direction.of("API is an English word, and there is more. حالا همه چیز به فارسی نوشته می‌شود و خیلی بیشتر است"), "ltr");
});

test("a short answer is decided when it is whole", () => {
  assert.equal(new GrowingDirection("ltr").of("بله"), "ltr");
  assert.equal(new GrowingDirection("ltr").of("بله", true), "rtl");
});

test("answers are spoken in whole sentences, at most every three seconds, and then the end", () => {
  const announcer = new Announcer();
  announcer.begin();
  announcer.grew("One sentence. And ha", 10_000);
  assert.equal(announcer.words.value, "One sentence.");
  announcer.grew("One sentence. And half. More.", 11_000);
  assert.equal(announcer.words.value, "One sentence.");
  announcer.grew("One sentence. And half. More.", 13_001);
  assert.equal(announcer.words.value, "And half. More.");
  announcer.ended("One sentence. And half. More. Rest", "Ready.", 13_500);
  assert.equal(announcer.words.value, "Rest Ready.");
});

test("conversations stand under how long ago they were touched, newest first", () => {
  const at = (id: string, updated_at: string): Conversation => ({ id, title: id, active_leaf_id: null, revision: 1, created_at: updated_at, updated_at });
  const now = new Date(2025, 5, 15, 12);
  const ago = (days: number) => new Date(now.getTime() - days * 24 * 3600 * 1000).toISOString();
  const groups = byDate([at("a", ago(0)), at("b", ago(0.1)), at("c", ago(1)), at("d", ago(5)), at("e", ago(20)), at("f", ago(60))], now);
  assert.deepEqual(groups.map(({ conversations }) => conversations.map(({ id }) => id)), [["a", "b"], ["c"], ["d"], ["e"], ["f"]]);
});

test("words have their values put in, numbers in the reader's digits", () => {
  speak("fa", { "stats.first": "{time} تا نخستین واژه", "time.seconds": "{n} ثانیه", "time.minutes": "{n} دقیقه" });
  assert.equal(t("stats.first", { time: duration(320) }), "۰٫۳ ثانیه تا نخستین واژه");
  assert.equal(duration(240_000), "۴ دقیقه");
  assert.equal(t("no.such.key"), "no.such.key");
});
