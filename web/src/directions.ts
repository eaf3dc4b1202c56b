// The reader's own word on the direction of single messages, kept in this browser. What a text says of itself is direction.ts.
import { signal } from "@preact/signals";
import type { Direction } from "./direction.ts";

const KEY = "hamdam.directions";
const AT_MOST = 500; // messages; the oldest choices go

export const overrides = signal<Readonly<Record<string, Direction>>>(read());

export function turnRound(id: string, now: Direction): void {
  const kept = Object.entries(overrides.peek()).filter(([other]) => other !== id);
  overrides.value = Object.fromEntries([...kept, [id, now === "rtl" ? "ltr" : "rtl"] as const].slice(-AT_MOST));
  try {
    localStorage.setItem(KEY, JSON.stringify(overrides.peek()));
  } catch (error) {
    if (!(error instanceof DOMException)) throw error; // kept until the page goes
  }
}

function read(): Record<string, Direction> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}") as Record<string, Direction>;
  } catch {
    return {}; // storage switched off, or not what we wrote
  }
}
