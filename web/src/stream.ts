// An answer that grows, drawn block by block: finished blocks stand, only the open tail is drawn again. It knows neither socket nor clock.
//
// What is on the page at the end is what drawing the whole text at once gives, however it was cut; tests/web/stream.test.ts holds this.
import { type Block, nodesOf, parse } from "./markdown.ts";
import { presentable } from "./unfinished.ts";

export class StreamRenderer {
  private standing = ""; // the text whose blocks are not drawn again
  private tail: ChildNode[] = [];

  /** `finished` is given each block's nodes once, when they will not change any more. */
  constructor(
    private readonly root: HTMLElement,
    private readonly finished: (nodes: ChildNode[]) => void = () => undefined,
  ) {}

  /** Draws `text`, which usually begins with what was drawn before; `open` while more may come. */
  render(text: string, open: boolean): void {
    text = text.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.standing)) this.clear();
    let { blocks, definitions } = parse(text.slice(this.standing.length));
    if (definitions && this.standing) {
      this.clear();
      blocks = parse(text).blocks;
    }
    for (const node of this.tail) node.remove();
    const count = !open ? blocks.length : definitions ? 0 : closedBlocks(blocks);
    const closed = blocks.slice(0, count);
    if (closed.length) {
      this.finished(this.draw(closed));
      this.standing += closed.map(({ raw }) => raw).join("");
    }
    const rest = blocks.slice(count);
    this.tail = rest.length ? this.draw(definitions ? rest : parse(presentable(rest.map(({ raw }) => raw).join(""))).blocks) : [];
  }

  private draw(blocks: Block[]): ChildNode[] {
    const nodes = blocks.flatMap((block) => [...nodesOf([block]).childNodes]);
    this.root.append(...nodes);
    return nodes;
  }

  private clear(): void {
    this.root.replaceChildren();
    this.standing = "";
    this.tail = [];
  }
}

/** How many of the first blocks cannot change any more, whatever is written after them. */
export function closedBlocks(blocks: Block[]): number {
  const closed = new Array<boolean>(blocks.length).fill(false);
  for (let i = blocks.length - 1; i >= 0; i--) closed[i] = isClosed(blocks, closed, i);
  const open = closed.indexOf(false);
  return open === -1 ? blocks.length : open;
}

function isClosed(blocks: Block[], closed: boolean[], i: number): boolean {
  const block = blocks[i] as Block;
  const after = blocks[i + 1];
  switch (block.type) {
    case "space": // only together with what follows: spaces at the end may be the beginning of an indented line
      return after !== undefined && block.raw.endsWith("\n");
    case "heading":
    case "hr":
      return block.raw.endsWith("\n");
    case "code":
      if (block["codeBlockStyle"] !== "indented") return after !== undefined || endsWithFence(block.raw);
      return anotherBlockBegan(blocks, i);
    case "paragraph":
    case "table":
      return after?.type === "space" ? after.raw.split("\n").length > 2 : closed[i + 1] === true;
    default: // lists and quotes go on after blank lines
      return anotherBlockBegan(blocks, i);
  }
}

/** A blank line, and after it a whole line that does not belong to block `i`. */
function anotherBlockBegan(blocks: Block[], i: number): boolean {
  const after = blocks[i + 1];
  const begun = blocks[i + 2];
  return after?.type === "space" && begun !== undefined && begun.raw.includes("\n");
}

function endsWithFence(raw: string): boolean {
  const fence = /^ {0,3}(`{3,}|~{3,})/.exec(raw)?.[1];
  const lines = raw.split("\n");
  if (!fence || lines.length < 3 || lines.at(-1) !== "") return false;
  const last = lines.filter((line) => line.trim() !== "").at(-1) ?? "";
  return last !== lines[0] && /^ {0,3}[`~]+ *$/.test(last) && last.trimStart().startsWith(fence);
}
