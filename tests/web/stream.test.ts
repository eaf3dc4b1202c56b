// What a streamed answer looks like at its end is what the whole text drawn at once looks like, however it was cut.
import { dom, element } from "./dom.ts";
import assert from "node:assert/strict";
import { test } from "node:test";
import { nodesOf, parse } from "../../web/src/markdown.ts";
import { StreamRenderer } from "../../web/src/stream.ts";

const ANSWERS: Record<string, string> = {
  prose: "One paragraph\nin two lines.\n\nAnother with **bold**, *slanted*, `code` and ~~old~~ text.\n\nEnd",
  headings: "# One\ntext\n## Two\n\nSetext\n---\nmore\n\n***\nline above\n\nfoo\n#bar\n#\n",
  lists: "Intro:\n\n- a\n- b\n\n  still b\n\n- c\n    - deep\n    - deeper\n\n\n1. one\n2. two\n\n   ```js\n   let x = 1;\n   ```\n3. three\n\nAfter.\n\n* [ ] open\n* [x] done\n",
  code: "Before\n```python\ndef f():\n    return `1`\n\n\n# no heading\n```\nafter\n\n~~~\n```\n~~~\n\n    indented\n\n    again\n\nend ``a ` b``\n\n````md\n```\n````\n\n```\nopen at the end",
  tables: "Head:\n\n| a | b |\n|---|:-:|\n| 1 | `x|y` |\n| 2 | **z** |\n\nafter\n| no table |\n\na | b\n--|--\n1 | 2\nlazy",
  quotes: "> quote\n> more\nlazy\n\n> second\n>\n> > nested\n>\n> - list\n\nplain\n> again",
  links: "See [here](https://a.example/x_(y)) and <https://b.example> and https://c.example/a_b*c*. [ref] and [text][1].\n\nMore.\n\n[1]: https://d.example\n[ref]: https://e.example 'T'\n\nEnd [1] [unknown].",
  html: "<div>\n**bold** <b>x</b>\n</div>\n\n<script>alert(1)</script>\n\n<!-- c\n\nd -->\ntext <img src=x onerror=alert(1)> end\n",
  persian: "سلام! این یک **آزمون** است؛ می‌روم و کتاب‌ها.\n\n- API یعنی رابط\n- دوم: `code`\n\n| نام | عدد |\n|---|---|\n| الف | ۱۲۳ |\n\nپایان 👨‍👩‍👧.",
  breaks: "a  \nb\\\nc\r\nd\r\n\r\ne\n\n\n\n\nf   \n   \n   g\n",
};

function drawn(...texts: [string, ...string[]]): string {
  const root = element();
  const renderer = new StreamRenderer(root);
  for (const text of texts.slice(0, -1)) renderer.render(text, true);
  renderer.render(texts.at(-1) ?? "", false);
  return root.innerHTML;
}

for (const [name, text] of Object.entries(ANSWERS)) {
  test(`an answer with ${name} cut anywhere in two looks as if drawn at once`, () => {
    const whole = drawn(text);
    for (let cut = 0; cut <= text.length; cut++) assert.equal(drawn(text.slice(0, cut), text), whole, `cut at ${cut}`);
  });

  test(`an answer with ${name} that comes letter by letter looks as if drawn at once`, () => {
    const steps = Array.from({ length: text.length }, (_, i) => text.slice(0, i + 1));
    assert.equal(drawn(...(steps as [string])), drawn(text));
  });
}

test("any mixture of blocks that comes in any pieces looks as if drawn at once", () => {
  let state = 1;
  const random = (below: number) => (state = (state * 48271) % 2147483647) % below;
  const lines = Object.values(ANSWERS).flatMap((text) => text.split(/(?<=\n)/));
  for (let round = 0; round < 150; round++) {
    const text = Array.from({ length: 3 + random(12) }, () => lines[random(lines.length)]).join("").slice(0, 600);
    const steps: string[] = [];
    for (let end = random(9); end < text.length; end += 1 + random(9)) steps.push(text.slice(0, end));
    assert.equal(drawn(...(steps as [string]), text), drawn(text), JSON.stringify(text));
  }
});

test("drawing block by block is drawing the whole document", () => {
  for (const text of Object.values(ANSWERS)) {
    const root = element();
    root.append(nodesOf(parse(text.replace(/\r\n?/g, "\n")).blocks));
    assert.equal(drawn(text), root.innerHTML);
  }
});

test("the raw texts of the blocks joined are the text", () => {
  for (const text of Object.values(ANSWERS)) {
    const plain = text.replace(/\r\n?/g, "\n");
    assert.equal(parse(plain).blocks.map(({ raw }) => raw).join(""), plain);
  }
});

test("a finished block is drawn once and stays the same node", () => {
  const root = element();
  const renderer = new StreamRenderer(root);
  renderer.render("First.\n\nSec", true);
  const first = root.firstChild;
  renderer.render("First.\n\nSecond.\n\nThird", true);
  assert.equal(root.firstChild, first);
  assert.equal(root.textContent?.replace(/\s+/g, " ").trim(), "First. Second. Third");
});

test("code is given out as finished when its fence closes and not before", () => {
  const finished: string[] = [];
  const renderer = new StreamRenderer(element(), (nodes) => finished.push(...nodes.map((node) => node.nodeName)));
  renderer.render("```js\nlet x;\n", true);
  assert.deepEqual(finished, []);
  renderer.render("```js\nlet x;\n```\n", true);
  assert.equal(finished.includes("FIGURE"), true);
});

test("a text that was corrected is drawn anew", () => {
  const root = element();
  const renderer = new StreamRenderer(root);
  renderer.render("Wrong.\n\nMore", true);
  renderer.render("Right.\n\nMore", true);
  assert.equal(root.textContent?.includes("Wrong"), false);
});

test("what is begun does not flash as raw markdown", () => {
  const shown = (text: string) => {
    const root = element();
    new StreamRenderer(root).render(text, true);
    return root.textContent?.trim();
  };
  assert.equal(shown("some **bo"), "some bo");
  assert.equal(shown("some **bold*"), "some bold");
  assert.equal(shown("some **"), "some");
  assert.equal(shown("some `co"), "some co");
  assert.equal(shown("see [the page](https://exam"), "see the page");
  assert.equal(shown("see [the pa"), "see the pa");
  assert.equal(shown("text\n-"), "text");
  assert.equal(shown("text\n\n| a | b |\n|-"), "text");
  assert.equal(shown("```\nx\n``"), "x");
  assert.equal(shown("2 * 3 and a_b"), "2 * 3 and a_b");
});

assert.ok(dom);
