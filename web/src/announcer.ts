// Speaks an answer to screen readers: whole sentences, at most every three seconds. The log itself is silent, or it would stutter.
import { signal } from "@preact/signals";

const PAUSE = 3000; // ms
const SENTENCE_END = /[.!?؟。…:\n](?=\s|$)/g;

export class Announcer {
  readonly words = signal(""); // what the polite region holds
  private spoken = 0;
  private last = 0;

  begin(): void {
    this.spoken = 0;
    this.last = 0;
  }

  /** `text` so far; `now` in ms. */
  grew(text: string, now: number): void {
    if (now - this.last < PAUSE) return;
    let end = this.spoken;
    for (const found of text.slice(this.spoken).matchAll(SENTENCE_END)) end = this.spoken + found.index + 1;
    if (end > this.spoken) this.say(text, end, now);
  }

  /** The rest, and that it is the end. */
  ended(text: string, ready: string, now: number): void {
    this.say(text, text.length, now);
    this.words.value = `${this.words.peek()} ${ready}`.trim();
  }

  private say(text: string, end: number, now: number): void {
    this.words.value = text.slice(this.spoken, end).replace(/[*_`#|>~]+/g, " ").trim();
    this.spoken = end;
    this.last = now;
  }
}
