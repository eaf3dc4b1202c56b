// Markdown to DOM nodes: the one place of the pages that turns text into HTML. It does not stream (stream.ts) and adds no buttons (code.ts).
//
// Four fences, each enough for what is known today: raw HTML is no syntax here (it is text), the renderer writes a small
// set of tags, DOMPurify lets only that set through, and the content security policy allows no script and no foreign image.
import DOMPurify, { type Config } from "dompurify";
import { Lexer, Marked, Parser, type Token, type Tokens } from "marked";

export type Block = Token;

const purify = DOMPurify(window);

const NO_ADDRESSES = ["rel", "target", "dir", "start", "align", "tabindex", "data-language"];
const ALLOWED: Config & { RETURN_DOM_FRAGMENT: true } = {
  ALLOWED_TAGS: [
    "p", "br", "strong", "em", "del", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "a", "code", "pre",
    "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td", "div", "span",
  ],
  ALLOWED_ATTR: ["href", "class", ...NO_ADDRESSES],
  ADD_URI_SAFE_ATTR: NO_ADDRESSES, // all others must hold an address that the next line allows
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const ALLOWED_IN_CODE: typeof ALLOWED = { ...ALLOWED, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] };

const ESCAPES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text: string) => text.replace(/[&<>"']/g, (character) => ESCAPES[character] ?? "");

const SAFE_LINK = /^(?:https?:\/\/[^\s/]|mailto:[^\s])/i;
const LOOKS_LIKE_ADDRESS = /^(?:https?:\/\/|www\.|mailto:)|^\S+@\S+$/i;

function link(href: string, label: string, text: string): string {
  if (!SAFE_LINK.test(href)) return label;
  const direction = LOOKS_LIKE_ADDRESS.test(text) ? ' dir="ltr"' : "";
  return `<a href="${escape(href)}" rel="noopener noreferrer nofollow" target="_blank"${direction}>${label}</a>`;
}

const markdown = new Marked({
  gfm: true,
  breaks: false,
  tokenizer: {
    html: () => undefined, // `undefined` is "not here" (and `false` would be "as always"): tags are text
    tag: () => undefined,
  },
  renderer: {
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6); // the page has the first two levels
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>\n`;
    },
    code({ text, lang }) {
      const language = /^[\w+#.-]{1,32}/.exec(lang ?? "")?.[0] ?? "";
      const caption = `<figcaption><span>${escape(language)}</span></figcaption>`; // code.ts puts its buttons there
      return `<figure class="code" dir="ltr" data-language="${escape(language)}">${caption}<pre tabindex="0"><code>${escape(text)}</code></pre></figure>\n`;
    },
    codespan: ({ text }) => `<code dir="ltr">${escape(text)}</code>`,
    link({ href, tokens, text }) {
      return link(href, this.parser.parseInline(tokens), text);
    },
    // A picture from elsewhere would tell its host that, and what, somebody reads: it becomes a link.
    image: ({ href, text }) => link(href, escape(text || href), text),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    table({ header, rows }) {
      const cells = (row: Tokens.TableCell[]) => `<tr>${row.map((cell) => this.tablecell(cell)).join("")}</tr>`;
      const body = rows.length ? `<tbody>${rows.map(cells).join("")}</tbody>` : "";
      return `<div class="table" tabindex="0"><table><thead>${cells(header)}</thead>${body}</table></div>\n`;
    },
  },
});

export interface Parsed {
  blocks: Block[];
  /** A link definition (`[1]: https://…`) may change any block, also one that stands before it. */
  definitions: boolean;
}

/** The top-level blocks of `text` in order; their `raw` texts joined are `text` again. */
export function parse(text: string): Parsed {
  const blocks = new Lexer(markdown.defaults).lex(text);
  return { blocks, definitions: Object.keys(blocks.links).length > 0 };
}

/** New nodes for `blocks`, safe to be put anywhere in the page. */
export function nodesOf(blocks: Block[]): DocumentFragment {
  return purify.sanitize(new Parser(markdown.defaults).parse(blocks), ALLOWED);
}

/** What a highlighter made of code: coloured spans and nothing else. */
export function colouredNodes(html: string): DocumentFragment {
  return purify.sanitize(html, ALLOWED_IN_CODE);
}
