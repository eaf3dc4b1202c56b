// An answer: markdown that grows while it is written, and below it what can be done with it and one quiet line about its speed.
import { effect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { canContinue } from "./actions.ts";
import { Branches, CopyButton } from "./branches.tsx";
import { Calls } from "./calls.tsx";
import type { Message, Place } from "./chat.ts";
import { furnish } from "./code.ts";
import { directionOf, GrowingDirection } from "./direction.ts";
import { overrides, turnRound } from "./directions.ts";
import { Icon } from "./icons.tsx";
import { duration, number, percent, t } from "./i18n.ts";
import { usePage } from "./page.ts";
import { Problem } from "./problem.tsx";
import { Reasoning } from "./reasoning.tsx";
import { StreamRenderer } from "./stream.ts";

const FRAME = 33; // ms between two drawings of a growing answer

export function Answer({ place }: { place: Place }) {
  const { state, actions } = usePage();
  const body = useRef<HTMLDivElement>(null);
  const message = place.message.value;
  const { id, text, reasoning, calls, status, error, saved } = message;
  const growing = useMemo(() => new GrowingDirection(directionOf(questionOf(state.chat.peek().tree.peek().get(place.parent_id ?? "")))), []);
  const open = status === "in_progress";
  const direction = overrides.value[id] ?? growing.of(text, !open);
  useDrawn(body, place);
  useSpoken(place);

  return (
    <article class="message answer" aria-label={t("message.answer")} aria-busy={open}>
      <h2 class="visually-hidden">{t("message.answer")}</h2>
      {reasoning !== "" && <Reasoning text={reasoning} thinking={open && text === ""} start={direction} />}
      <div class="prose" dir={direction} ref={body} />
      <Calls calls={calls} />
      {open && text + reasoning === "" && <Waiting message={message} />}
      {status === "completed" && text === "" && calls.length === 0 && <p class="quiet">{t("answer.empty")}</p>}
      {status === "failed" && <Problem error={error} lead={t("answer.failed")} action={t("message.regenerate")} onAction={() => actions.regenerate(place)} />}
      {(status === "cancelled" || status === "incomplete" || status === "interrupted") && (
        <Problem error={error} lead={t(`answer.${status}`)} {...(canContinue(message) ? { action: t("message.continue"), onAction: () => actions.continueAnswer(place) } : {})} />
      )}
      {!open && saved === "yes" && (
        <footer class="tools">
          <Branches place={place} />
          <CopyButton text={() => place.message.peek().text} />
          <button type="button" class="icon-button" aria-label={t("message.regenerate")} disabled={state.chat.value.writing.value !== undefined} onClick={() => actions.regenerate(place)}>
            <Icon name="retry" />
          </button>
          <button type="button" class="icon-button" aria-label={t("message.direction")} onClick={() => turnRound(id, direction)}>
            <Icon name="direction" />
          </button>
          <Stats message={message} />
        </footer>
      )}
    </article>
  );
}

const questionOf = (place: Place | undefined): string => place?.message.peek().text ?? "";

/** Draws the text into `body`: at once what is finished, at most every FRAME what grows. */
function useDrawn(body: { current: HTMLElement | null }, { message }: Place): void {
  useLayoutEffect(() => {
    if (!body.current) return;
    const renderer = new StreamRenderer(body.current, furnish);
    let waiting: ReturnType<typeof setTimeout> | undefined;
    let frame = 0;
    let drawn = 0;
    const draw = () => {
      waiting = undefined;
      drawn = performance.now();
      const { text, status } = message.peek();
      renderer.render(text, status === "in_progress");
    };
    const cancel = () => {
      clearTimeout(waiting);
      cancelAnimationFrame(frame);
      waiting = undefined;
    };
    const stop = effect(() => {
      if (message.value.status !== "in_progress" || message.value.text === "") {
        cancel();
        draw();
      } else if (waiting === undefined) {
        waiting = setTimeout(() => (frame = requestAnimationFrame(draw)), Math.max(0, FRAME - (performance.now() - drawn)));
      }
    });
    return () => {
      stop();
      cancel();
    };
  }, [message]);
}

/** Tells the announcer about an answer that is written while it is on screen. */
function useSpoken({ message }: Place): void {
  const { announcer } = usePage();
  useEffect(() => {
    let watching = false;
    return effect(() => {
      const { text, status } = message.value;
      if (status === "in_progress") {
        if (!watching) announcer.begin();
        watching = true;
        announcer.grew(text, performance.now());
      } else if (watching) {
        watching = false;
        announcer.ended(text, t("answer.ready"), performance.now());
      }
    });
  }, [message, announcer]);
}

function Waiting({ message: { progress } }: { message: Message }) {
  let words = t("answer.waiting");
  if (progress?.kind === "queued" && progress.position) {
    const place = progress.position;
    words = progress.etaMs ? t("answer.queuedFor", { place, time: duration(progress.etaMs) }) : t("answer.queued", { place });
  } else if (progress?.kind === "prefill" && progress.share && progress.share < 1) words = t("answer.reading", { percent: percent(progress.share) });
  return (
    <p class="waiting">
      <span class="pulse" aria-hidden="true" />
      {words}
    </p>
  );
}

function Stats({ message: { usage, timings } }: { message: Message }) {
  if (!usage || !timings) return null;
  const cached = usage.input_tokens_details?.cached_tokens ?? 0;
  const parts = [
    timings.tps > 0 && t("stats.speed", { n: number(timings.tps, { maximumFractionDigits: timings.tps < 10 ? 1 : 0 }) }),
    timings.ttft_ms > 0 && t("stats.first", { time: duration(timings.ttft_ms) }),
    cached > 0 && t("stats.cached", { percent: percent(cached / Math.max(1, usage.input_tokens)) }),
  ];
  return <span class="stats">{parts.filter(Boolean).join(" · ")}</span>;
}
