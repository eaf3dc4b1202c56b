// The icons: strokes in a 24-unit square, in the colour of the text round them. One table for Preact and for plain DOM.

const PATHS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 13l4 4L19 7",
  wrap: "M4 6h16M4 12h13a3 3 0 0 1 0 6h-5m2-2-2 2 2 2M4 18h4",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  retry: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  next: "M9 6l6 6-6 6",
  previous: "M15 6l-6 6 6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  menu: "M4 7h16M4 12h16M4 17h10",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  close: "M6 6l12 12M18 6L6 18",
  play: "M8 5l11 7-11 7z",
  direction: "M13 4v11M17 4v11M13 4h7M13 4a4 4 0 0 0 0 8M20 19H4m0 0 2-2m-2 2 2 2",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  signOut: "M14 4h5v16h-5M10 8l-4 4 4 4M6 12h9",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The same, for what is not drawn by Preact. */
export function icon(name: IconName): SVGSVGElement {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}
