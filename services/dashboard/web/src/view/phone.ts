// The width at which the page is laid out for one hand, as the style sheets have it.
const phone = matchMedia("(max-width: 760px)");

export const isPhone = (): boolean => phone.matches;
