// A button that opens a small list of choices above the page. The browser's own popover: Esc and a click elsewhere close it.
import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";

interface MenuProps {
  /** For a trigger without words of its own. */
  label?: string;
  trigger: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}

export function Menu({ label, trigger, class: className = "icon-button", children }: MenuProps) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);

  const place = (event: ToggleEvent) => {
    if (event.newState !== "open" || !button.current || !list.current) return;
    const at = button.current.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = list.current;
    const below = at.bottom + height + 8 < innerHeight;
    list.current.style.top = `${below ? at.bottom + 4 : at.top - height - 4}px`;
    list.current.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  };

  return (
    <>
      <button type="button" ref={button} class={className} aria-label={label} popovertarget={id}>
        {trigger}
      </button>
      <div id={id} ref={list} class="menu" popover="auto" onToggle={place} onClick={() => list.current?.hidePopover()}>
        {children}
      </div>
    </>
  );
}
