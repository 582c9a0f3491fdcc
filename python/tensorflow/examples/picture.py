"""Draws losses by step, and steps/s, of each protocol, as an SVG."""

COLOURS = ["#d1742f", "#0b6fb8"]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, BARS = 800, 320, 60, 60, 270, 560


def draw(title, curves, rates):
    """The SVG's text."""
    losses = [loss for curve in curves.values() for loss in curve]
    low, high = min(losses), max(losses)
    drawn = [text(LEFT, 24, title, 16), text(LEFT, 48, "loss by step"), text(BARS, 48, "steps/s")]
    drawn += [text(LEFT - 8, TOP + 4, f"{high:.3f}", anchor="end"), text(LEFT - 8, BOTTOM + 4, f"{low:.3f}", anchor="end")]
    drawn += [f'<path d="M{LEFT} {TOP}V{BOTTOM}H{BARS - 60}M{BARS} {BOTTOM}H{WIDTH - 20}" fill="none" stroke="#888"/>']
    for number, (protocol, curve) in enumerate(curves.items()):
        across, up = (BARS - 60 - LEFT) / max(1, len(curve) - 1), (BOTTOM - TOP) / (high - low or 1)
        points = " ".join(f"{LEFT + step * across:.1f},{BOTTOM - (loss - low) * up:.1f}" for step, loss in enumerate(curve))
        # The second is thinner, so that the first is seen below it where they are equal.
        look = f'stroke="{COLOURS[number]}" stroke-width="{4 - 3 * number}"'
        drawn.append(f'<polyline points="{points}" fill="none" {look}/>')
        height = (BOTTOM - TOP - 20) * rates[protocol] / max(rates.values())
        x = BARS + 10 + 110 * number
        drawn.append(f'<rect x="{x}" y="{BOTTOM - height:.1f}" width="90" height="{height:.1f}" fill="{COLOURS[number]}"/>')
        drawn += [text(x, BOTTOM - height - 6, f"{rates[protocol]:.1f}"), text(x, BOTTOM + 18, protocol)]
    style = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {style}>', background, *drawn, "</svg>\n"])


def text(x, y, said, size=12, anchor="start"):
    return f'<text x="{x}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#222">{said}</text>'
