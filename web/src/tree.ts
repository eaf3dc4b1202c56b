// The tree of a conversation's messages: which branch is on screen and what its alternatives are. Pure: it changes nothing and asks nobody.

export interface Node {
  readonly id: string;
  readonly parent_id: string | null;
}

export class Tree<N extends Node> {
  private readonly byId = new Map<string, N>();
  private readonly children = new Map<string | null, N[]>();

  /** `nodes` in creation order. A node whose parent was not loaded (yet) stands as a root. */
  constructor(nodes: Iterable<N>) {
    for (const node of nodes) this.byId.set(node.id, node);
    for (const node of this.byId.values()) {
      const parent = this.parentOf(node);
      const among = this.children.get(parent);
      if (among) among.push(node);
      else this.children.set(parent, [node]);
    }
  }

  get(id: string): N | undefined {
    return this.byId.get(id);
  }

  /** The messages from the root to `leaf`. */
  path(leaf: string | null): N[] {
    const path: N[] = [];
    for (let node = leaf === null ? undefined : this.byId.get(leaf); node; node = this.byId.get(node.parent_id ?? "")) path.push(node);
    return path.reverse();
  }

  /** All that answer the same message as `node` does, itself among them, oldest first. */
  siblings(node: N): N[] {
    return this.children.get(this.parentOf(node)) ?? [node];
  }

  childrenOf(id: string): N[] {
    return this.children.get(id) ?? [];
  }

  /** The newest end of the branch that begins with `id`. */
  leafBelow(id: string): string {
    for (let last = this.childrenOf(id).at(-1); last; last = this.childrenOf(id).at(-1)) id = last.id;
    return id;
  }

  private parentOf(node: N): string | null {
    return node.parent_id !== null && this.byId.has(node.parent_id) ? node.parent_id : null;
  }
}
