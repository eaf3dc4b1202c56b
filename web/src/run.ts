// One run as one viewer sees it: which numbered events it has, and what to do with the next. It holds no text and no socket.

export type Verdict = "apply" | "drop" | "gap";

export class RunCursor {
  constructor(
    readonly responseId: string,
    readonly itemId: string,
    public last = 0,
  ) {}

  /** What to do with an event that covers `from … number`; "apply" also takes it as seen. */
  take(number: number, from: number = number): Verdict {
    if (number <= this.last) return "drop";
    if (from !== this.last + 1) return "gap";
    this.last = number;
    return "apply";
  }

  /**
   * A snapshot stands for every event up to its number. An older one than what is there is of no use, unless the run is
   * over: after a restart the server may have less of a text than we saw, and what it has is what counts.
   */
  takeSnapshot(number: number, over: boolean): Verdict {
    if (number < this.last && !over) return "drop";
    this.last = number;
    return "apply";
  }
}
