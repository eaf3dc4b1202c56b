// A refusal or a fault, said where it happened, with the way to try again. Never in a corner, and never for a moment only.
import { has, t } from "./i18n.ts";
import type { ErrorBody } from "./protocol.ts";

interface ProblemProps {
  error?: ErrorBody | null | undefined;
  lead: string;
  action?: string;
  onAction?: () => void;
}

export function Problem({ error, lead, action, onAction }: ProblemProps) {
  const known = error && has(`problem.${error.code}`) ? t(`problem.${error.code}`) : (error?.message ?? "");
  return (
    <p class="problem" role="alert">
      {lead} <bdi>{known}</bdi>
      {action && onAction && (
        <button type="button" class="text-button" onClick={onAction}>
          {action}
        </button>
      )}
    </p>
  );
}
