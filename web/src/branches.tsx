// ‹2/3›: the versions of a message, and the way from one to the other; and the copy button, which every message has too.
import { useSignal } from "@preact/signals";
import type { Place } from "./chat.ts";
import { copy } from "./clipboard.ts";
import { Icon } from "./icons.tsx";
import { number, t } from "./i18n.ts";
import { usePage } from "./page.ts";

export function Branches({ place }: { place: Place }) {
  const { state, actions } = usePage();
  const versions = state.chat.value.tree.value.siblings(place);
  if (versions.length < 2) return null;
  const at = versions.findIndex(({ key }) => key === place.key);
  const step = (by: number, label: string, icon: "previous" | "next") => {
    const to = versions[at + by];
    return (
      <button type="button" class="icon-button flips" aria-label={label} disabled={!to} onClick={() => to && actions.chooseBranch(to as Place)}>
        <Icon name={icon} />
      </button>
    );
  };
  return (
    <span class="branches">
      {step(-1, t("message.previous"), "previous")}
      <span role="status" aria-label={t("message.version", { at: at + 1, of: versions.length })}>
        {number(at + 1)}/{number(versions.length)}
      </span>
      {step(1, t("message.next"), "next")}
    </span>
  );
}

export function CopyButton({ text }: { text: () => string }) {
  const copied = useSignal(false);
  const press = async () => {
    if (!(await copy(text()))) return;
    copied.value = true;
    setTimeout(() => (copied.value = false), 1500);
  };
  return (
    <button type="button" class="icon-button" aria-label={copied.value ? t("message.copied") : t("message.copy")} onClick={() => void press()}>
      <Icon name={copied.value ? "check" : "copy"} />
    </button>
  );
}
