// Where the reader is in the conversation: it follows the end while they are there, and never pulls them away from anywhere else.
import { signal } from "@preact/signals";

const NEAR = 32; // px from the end that still count as being there

export class Follower {
  readonly pinned = signal(true);
  private top = 0;
  private height = 0;

  /** `scroller` scrolls, `content` grows in it. Returns the way to stop. */
  attach(scroller: HTMLElement, content: HTMLElement): () => void {
    const distance = () => scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
    const toEnd = () => (scroller.scrollTop = scroller.scrollHeight);
    const scrolled = () => {
      const shrunk = scroller.scrollHeight < this.height; // then the browser moved us, not the reader
      if (scroller.scrollTop < this.top && !shrunk) this.pinned.value = distance() < 1;
      else if (distance() < NEAR) this.pinned.value = true;
      this.top = scroller.scrollTop;
      this.height = scroller.scrollHeight;
    };
    const grew = new ResizeObserver(() => {
      if (this.pinned.peek()) toEnd();
      this.height = scroller.scrollHeight;
    });
    scroller.addEventListener("scroll", scrolled, { passive: true });
    grew.observe(content);
    grew.observe(scroller);
    this.jump = toEnd;
    return () => {
      scroller.removeEventListener("scroll", scrolled);
      grew.disconnect();
    };
  }

  private jump: () => void = () => undefined;

  toEnd(): void {
    this.pinned.value = true;
    this.jump();
  }
}
