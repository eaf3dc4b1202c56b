// What a code block gets round its code: its language, a copy button, a switch for wrapping, and colours once it is finished.
import { copy } from "./clipboard.ts";
import { icon } from "./icons.tsx";
import { t } from "./i18n.ts";
import { colouredNodes } from "./markdown.ts";

const LONGEST = 50_000; // characters; longer code stays without colours

/** Adds the furniture to every code block among `nodes`, which are finished. */
export function furnish(nodes: Iterable<Node>): void {
  for (const node of nodes) {
    if (!(node instanceof Element)) continue;
    const figures = node.matches("figure.code") ? [node] : node.querySelectorAll("figure.code");
    for (const figure of figures) furnishOne(figure as HTMLElement);
  }
}

function furnishOne(figure: HTMLElement): void {
  const code = figure.querySelector("code");
  const caption = figure.querySelector("figcaption");
  if (!code || !caption || caption.querySelector("button")) return;
  const language = figure.dataset["language"] ?? "";
  const text = code.textContent ?? "";
  const wrap = button("wrap", t("code.wrap"));
  wrap.setAttribute("aria-pressed", "false");
  wrap.addEventListener("click", () => wrap.setAttribute("aria-pressed", String(figure.classList.toggle("wrapped"))));
  const copying = button("copy", t("code.copy"));
  copying.addEventListener("click", () => void copied(copying, text));
  caption.append(wrap, copying);
  if (language && text.length <= LONGEST) void colour(code, text, language);
}

function button(name: "wrap" | "copy", label: string): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "icon-button";
  made.title = label;
  made.setAttribute("aria-label", label);
  made.append(icon(name));
  return made;
}

async function copied(pressed: HTMLButtonElement, text: string): Promise<void> {
  if (!(await copy(text))) return;
  pressed.replaceChildren(icon("check"));
  setTimeout(() => pressed.replaceChildren(icon("copy")), 1500);
}

async function colour(code: HTMLElement, text: string, language: string): Promise<void> {
  const { highlighted } = await import("./languages.ts");
  const html = highlighted(text, language.toLowerCase());
  if (html !== null && code.isConnected) code.replaceChildren(colouredNodes(html));
}
