// The conversation on screen: the messages of one branch, turn by turn, and the way back to its end. Not what a message looks like.
import { useComputed } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Answer } from "./answer.tsx";
import { Results } from "./calls.tsx";
import { ECHO, type Place } from "./chat.ts";
import { Icon } from "./icons.tsx";
import { has, t } from "./i18n.ts";
import { usePage } from "./page.ts";
import { Question } from "./question.tsx";

export function Thread() {
  const { state, follower } = usePage();
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const turns = useComputed(() => turnsOf(state.chat.value.path.value));
  const chat = state.chat.value;
  const problem = state.problem.value;
  useEffect(() => {
    if (!scroller.current || !content.current) return;
    const detach = follower.attach(scroller.current, content.current);
    follower.toEnd();
    return detach;
  }, [chat, follower]);

  return (
    <div class="thread-frame">
      <div class="thread" ref={scroller}>
        <div class="column" ref={content} role="log" aria-live="off" aria-label={t("chat.label")}>
          {chat.earlier.value && turns.value.length > 0 && (
            <button type="button" class="text-button earlier" onClick={() => void keepingPlace(scroller.current, () => state.loadEarlier(chat))}>
              {t("chat.earlier")}
            </button>
          )}
          {turns.value.map((turn, i) => (
            <section key={turn[0]?.key} class={`turn ${i === turns.value.length - 1 && turn[0]?.key.startsWith(ECHO) ? "fresh" : ""}`}>
              {turn.map((place) => (
                <MessageOf key={place.key} place={place} />
              ))}
            </section>
          ))}
          {problem && (
            <p class="problem" role="alert">
              {t("chat.failedToLoad")} {t(has(`problem.${problem.code}`) ? `problem.${problem.code}` : "problem.other")}
              <button type="button" class="text-button" onClick={() => void state.load(chat)}>
                {t("problem.tryAgain")}
              </button>
            </p>
          )}
        </div>
      </div>
      {!follower.pinned.value && (
        <button type="button" class="jump icon-button" aria-label={t("chat.latest")} onClick={() => follower.toEnd()}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}

function MessageOf({ place }: { place: Place }) {
  const { role, outputs } = place.message.peek();
  if (role === "tool") return <Results outputs={outputs ?? []} />;
  return role === "user" ? <Question place={place} /> : <Answer place={place} />;
}

/** A question with what answers it. */
function turnsOf(path: readonly Place[]): Place[][] {
  const turns: Place[][] = [];
  for (const place of path) {
    if (place.message.peek().role === "user" || turns.length === 0) turns.push([place]);
    else turns.at(-1)?.push(place);
  }
  return turns;
}

/** Older messages come in above; what the reader looks at stays where it is. */
async function keepingPlace(scroller: HTMLElement | null, load: () => Promise<void>): Promise<void> {
  if (!scroller) return;
  const fromEnd = scroller.scrollHeight - scroller.scrollTop;
  await load();
  requestAnimationFrame(() => (scroller.scrollTop = scroller.scrollHeight - fromEnd));
}
