// The open end of a growing markdown text, made presentable: what is begun is closed, what would flash for a moment is hidden.
// It only serves the eye while an answer streams; the finished text is never touched.

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const ONLY_MARKERS = /(?:^|\n)[^\S\n]*(?:[-=*_+#>|`~:\s]+|\d+[.)]?\s*)$/; // "-" under a line would make it a heading for one frame

/** `tail`: the text from the last block on that may still change. */
export function presentable(tail: string): string {
  if (insideFence(tail)) return tail.replace(/\n {0,3}[`~]+$/, "\n");
  const cut = hideTableHead(tail.replace(ONLY_MARKERS, ""));
  const from = cut.lastIndexOf("\n\n") + 1;
  return cut.slice(0, from) + closeInline(cut.slice(from));
}

function insideFence(text: string): boolean {
  let fence = "";
  for (const line of text.split("\n")) {
    const found = FENCE.exec(line)?.[1];
    if (!found) continue;
    if (!fence) fence = found;
    else if (found.startsWith(fence) && line.trim() === found) fence = "";
  }
  return fence !== "";
}

/** A table is one only from its second line on; until then its head would stand there with bars. */
function hideTableHead(text: string): string {
  const lines = text.split("\n");
  let first = lines.length;
  while (first > 0 && lines[first - 1]?.trimStart().startsWith("|")) first--;
  const begun = lines.slice(first);
  const isTable = begun.some((line, i) => i > 0 && /^[\s|:-]+$/.test(line) && line.includes("-"));
  return begun.length === 0 || isTable ? text : lines.slice(0, first).join("\n");
}

function closeInline(text: string): string {
  const code = openCode(text);
  if (code !== null) return text.endsWith(code) ? text.slice(0, -code.length) : text + code;
  return closeEmphasis(dropOpenLink(text));
}

/** The run of backticks that opens a code span which has no end yet. */
function openCode(text: string): string | null {
  let open: string | null = null;
  for (const [run] of text.matchAll(/(?<!\\)`+/g)) {
    if (open === null) open = run;
    else if (open === run) open = null;
  }
  return open;
}

function dropOpenLink(text: string): string {
  return text.replace(/!?\[([^\[\]\n]*)(?:\](?:\([^()\s]*(?:\s[^()\n]*)?)?)?$/, "$1");
}

function closeEmphasis(text: string): string {
  text = text.replace(/(^|\s)[*_~]{1,3}$/, "$1"); // it opens something that is not there yet
  const prose = text.replace(/(`+)[\s\S]*?\1/g, (code) => "x".repeat(code.length));
  for (const mark of ["**", "~~"]) {
    if (prose.split(mark).length % 2 === 1) continue;
    return (text.endsWith(mark[0] ?? "") ? text.slice(0, -1) : text).trimEnd() + mark;
  }
  return text;
}
