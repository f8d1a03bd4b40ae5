"""What people meet on a page, as scripts that a browser runs: contrast, names, places, the focus."""

# The contrast of every text that is seen with what lies behind it (WCAG 2.2, 1.4.3): those under what is allowed.
CONTRAST = """
    const parts = (color) => {
      const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
      if (!/^rgba?\\(/.test(color)) throw new Error(`a colour of another form: ${color}`);
      return {light: [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0), a};
    };
    const behind = (node) => {
      for (let n = node; n; n = n.parentElement) {
        const {light, a} = parts(getComputedStyle(n).backgroundColor);
        if (a === 1) return light;
        if (a !== 0) throw new Error("a background that is half there");
      }
      throw new Error("no background");
    };
    const low = [];
    let seen = 0;
    const top = document.querySelector("dialog[open]") ?? document.body;
    const walker = document.createTreeWalker(top, NodeFilter.SHOW_TEXT);
    for (let text; (text = walker.nextNode());) {
      const node = text.parentElement;
      if (!text.data.trim() || !node.checkVisibility() || node.closest(".unseen, noscript")) continue;
      const style = getComputedStyle(node);
      const [size, weight] = [parseFloat(style.fontSize), Number(style.fontWeight)];
      const wanted = size >= 24 || (size >= 18.66 && weight >= 700) ? 3 : 4.5;
      const [a, b] = [parts(style.color).light, behind(node)].sort((x, y) => y - x);
      seen += 1;
      const contrast = (a + 0.05) / (b + 0.05);
      if (contrast < wanted) low.push(`${contrast.toFixed(2)}: ${text.data.trim().slice(0, 40)}`);
    }
    for (const field of top.querySelectorAll("textarea, input[type=password]")) { // the edge of a field: 3 (1.4.11)
      const style = getComputedStyle(field);
      const [a, b] = [parts(style.borderTopColor).light, behind(field.parentElement)].sort((x, y) => y - x);
      if (field.checkVisibility() && (a + 0.05) / (b + 0.05) < 3) low.push(`edge of ${field.id}`);
    }
    return {low, seen}
"""
# What has the focus, and the line around it. A radio button's line is drawn around what stands beside it.
FOCUS = """
    const node = document.activeElement;
    const style = getComputedStyle(node.matches("input[type=radio]") ? node.nextElementSibling : node);
    const name = node.id || node.dataset.task || node.name || node.textContent.trim();
    return [name, style.outlineStyle, parseFloat(style.outlineWidth)]
"""
# Numbers every control that is seen outside of dialogs; whether each is a mere ornament.
CONTROLS = """
    const controls = document.querySelectorAll("button, a, input, textarea, summary, [tabindex], svg[role], img");
    return [...controls].filter(e => e.checkVisibility() && !e.closest("dialog")).map((e, i) => {
      e.dataset.number = i;
      return e.matches("img[alt='']");
    })
"""
# Ids that are there twice, references to ids that are not there, and headings that leave out a level.
STRUCTURE = """
    const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
    const names = ["aria-labelledby", "aria-describedby", "for"];
    const named = [...document.querySelectorAll(names.map(name => `[${name}]`))]
      .flatMap(e => names.flatMap(name => (e.getAttribute(name) ?? "").split(" ").filter(Boolean)));
    const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5")].filter(e => e.checkVisibility());
    const levels = headings.map(e => Number(e.tagName[1]));
    return {
      twice: ids.filter((id, i) => ids.indexOf(id) !== i), missing: named.filter(id => !ids.includes(id)),
      skipped: headings.filter((e, i) => levels[i] > (levels[i - 1] ?? 0) + 1).map(e => e.textContent),
    }
"""
# What goes beyond the window's sides.
BEYOND = """
    return [...document.querySelectorAll("body *")]
      .filter(e => e.checkVisibility() && !e.closest(".unseen, .skip"))
      .filter(e => {
        const place = e.getBoundingClientRect();
        return place.width > 0 && (place.right > innerWidth + 0.5 || place.left < -0.5);
      }).map(e => e.outerHTML.slice(0, 80))
"""
# Places to press that are too low for a finger (WCAG 2.2, 2.5.8), but for those inside of texts.
SMALL = """
    return [...document.querySelectorAll(".bar button, .bar a, form button, .tasks button, .empty button, .forms span")]
      .filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 24).map(e => e.textContent)
"""
