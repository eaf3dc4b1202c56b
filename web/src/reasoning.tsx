// What the model thought before its answer, folded away above it. As plain text: thoughts are drafts, not pages.
import { type Direction, directionOf } from "./direction.ts";
import { t } from "./i18n.ts";

export function Reasoning({ text, thinking, start }: { text: string; thinking: boolean; start: Direction }) {
  const direction = directionOf(text, start);
  return (
    <details class="folded" dir={start}>
      <summary>
        {thinking && <span class="pulse" aria-hidden="true" />}
        {t(thinking ? "answer.thinking" : "answer.reasoning")}
      </summary>
      <p dir={direction}>{text}</p>
    </details>
  );
}
