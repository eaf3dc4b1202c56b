// A page for the modules that need one. Imported first: markdown.ts takes hold of `window` when it is loaded.
import { JSDOM } from "jsdom";

export const dom = new JSDOM("<!doctype html><body></body>", { url: "http://localhost/" });
Object.assign(globalThis, { window: dom.window, document: dom.window.document });

export function element(): HTMLElement {
  return dom.window.document.createElement("div");
}
