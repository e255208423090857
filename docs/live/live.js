// The live picture: outputs of small networks along the straight path between two digits, the Chebyshev coefficients
// of these curves and their effective degree, all computed here. weights.js, which make_weights.py writes, comes first.
(() => {
  "use strict";
  const SIDE = 8, CLASSES = 10;
  // In pixels. INSET is half of the thumb in live.css.
  const INSET = 32, CURVES = { top: 22, height: 190, bottom: 8 }, BARS = { top: 12, height: 120, bottom: 22 };
  const SWEEP = 12000, MORPH = 350; // milliseconds, there and back, and from network to network
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  // Numbers

  function decode(text, Type) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return Float64Array.from(new Type(bytes.buffer));
  }

  function decodeLayer({ weight, step, bias }) {
    const whole = decode(weight, Int8Array), steps = decode(step, Float32Array);
    const inputs = whole.length / steps.length;
    return { weight: whole.map((value, i) => value * steps[Math.floor(i / inputs)]), bias: decode(bias, Float32Array) };
  }

  const silu = (x) => x / (1 + Math.exp(-x));

  function softmax(logits) {
    const largest = Math.max(...logits);
    const powers = logits.map((logit) => Math.exp(logit - largest));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  }

  function probabilities(layers, image) {
    let values = image;
    layers.forEach(({ weight, bias }, depth) => {
      const inputs = values, outputs = bias.slice();
      for (let row = 0, i = 0; row < outputs.length; row++) {
        let sum = outputs[row];
        for (let column = 0; column < inputs.length; column++) sum += weight[i++] * inputs[column];
        outputs[row] = sum;
      }
      values = depth < layers.length - 1 ? outputs.map(silu) : outputs;
    });
    return softmax(values);
  }

  const interpolate = (from, to, alpha) => from.map((value, i) => (1 - alpha) * value + alpha * to[i]);

  // At Chebyshev nodes the columns of the design matrix are orthogonal, so that least squares are plain sums:
  // c_k = Σ_i T_k(t_i) y_i · 2/r, and half of it for k = 0, where T_k(t_i) is ± cos(kθ_i).
  function analyse(layers, from, to, { nodes, degree }) {
    const angles = Array.from({ length: nodes }, (_, i) => ((i + 0.5) * Math.PI) / nodes);
    const alpha = angles.map((angle) => (1 - Math.cos(angle)) / 2);
    const values = alpha.map((each) => probabilities(layers, interpolate(from, to, each)));
    const spectrum = Array.from({ length: degree + 1 }, (_, k) => {
      const coefficients = new Float64Array(CLASSES);
      angles.forEach((angle, i) => {
        const factor = (Math.cos(k * angle) * (k ? 2 : 1)) / nodes; // the sign, (−1)^k, does not matter here
        for (let output = 0; output < CLASSES; output++) coefficients[output] += factor * values[i][output];
      });
      return coefficients.reduce((sum, c) => sum + Math.abs(c), 0) / CLASSES;
    });
    return { alpha, values, spectrum, degree: spectrum.reduce((sum, size, k) => sum + k * size, 0) };
  }

  // Elements

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  function drawDigit(image) {
    const cells = Array.from(image, (value, i) =>
      svg("rect", { x: i % SIDE, y: Math.floor(i / SIDE), width: 1, height: 1, "fill-opacity": value.toFixed(3) }));
    const options = { viewBox: `0 0 ${SIDE} ${SIDE}`, fill: "currentColor", "shape-rendering": "crispEdges" };
    return svg("svg", { ...options, "aria-hidden": "true" }, ...cells);
  }

  const article = (digit) => (digit === 8 ? "an 8" : `a ${digit}`);
  const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}%`;

  // Where a probability lies in the drawing of the curves.
  const y = (probability) => CURVES.top + (1 - probability) * CURVES.height;

  class Picture {
    constructor(root, data, id) {
      const pixels = decode(data.digits, Uint8Array).map((value) => value / 16);
      this.root = root;
      this.data = data;
      this.id = id;
      this.digits = data.labels.map((label, i) => ({ label, image: pixels.slice(i * SIDE ** 2, (i + 1) * SIDE ** 2) }));
      this.networks = data.networks.map((each) => ({ ...each, layers: each.layers.map(decodeLayer) }));
      [this.from, this.to] = data.start; // digits
      this.network = 0;
      this.at = 0.5;
      this.shown = null; // the numbers that are drawn, which may be on their way from one network's to another's
      this.morphing = 0;
      this.build();
      this.width = this.stage.clientWidth;
      this.choosePair();
      this.sweep();
      new ResizeObserver(() => this.resize()).observe(this.stage);
    }

    // Building

    build() {
      this.degrees = this.networks.map(() => html("strong", { class: "live-number" }));
      this.buildStage();
      const note = `Mean: of the effective degree over ${this.data.paths} paths between held-out digits.`;
      this.body = html("div", { class: "live-body" },
        html("div", { class: "live-controls" },
          html("div", { class: "live-pickers" }, this.buildPicker("from", "From"), this.buildPicker("to", "To")),
          html("fieldset", { class: "live-networks" },
            html("legend", {}, "Network, and its effective degree on this path"),
            html("div", {}, ...this.networks.map((_, i) => this.buildCard(i))),
            html("p", { class: "live-note" }, note))),
        this.stage);
      this.root.replaceChildren(this.body);
    }

    buildPicker(end, legend) {
      const tiles = this.digits.map(({ label, image }, i) => {
        const writing = this.data.labels.slice(0, i + 1).filter((other) => other === label).length;
        const names = { name: `live-${end}-${this.id}`, value: i, "aria-label": `${label} (${writing})` };
        const input = html("input", { type: "radio", ...names });
        input.checked = i === this[end];
        input.addEventListener("change", () => { this[end] = i; this.choosePair(); });
        return html("label", { class: "live-digit" }, input, drawDigit(image));
      });
      return html("fieldset", {}, html("legend", {}, legend), html("div", { class: "live-strip" }, ...tiles));
    }

    buildCard(i) {
      const { name, title, mean } = this.networks[i];
      const input = html("input", { type: "radio", name: `live-network-${this.id}`, value: name });
      input.checked = i === this.network;
      input.addEventListener("change", () => { this.network = i; this.chooseNetwork(); });
      return html("label", { class: "live-network", "data-network": name }, input, html("b", {}, title),
        this.degrees[i], html("span", { class: "live-facts" }, html("span", {}, `mean ${mean.toFixed(2)}`)));
    }

    buildStage() {
      const title = (...text) => html("p", { class: "live-title" }, ...text);
      const key = (kind) => html("span", { class: `live-key live-${kind}`, "aria-hidden": "true" });
      this.slider = html("input", { type: "range", min: 0, max: 100, step: "any", "aria-label": "Place on the path" });
      this.slider.addEventListener("input", () => this.move(this.slider.valueAsNumber / 100));
      this.image = html("div", { class: "live-image" }, drawDigit(this.digits[this.from].image));
      this.ghosts = html("div", { "aria-hidden": "true" });
      this.path = html("div", { class: "live-path" }, this.ghosts, this.slider, this.image);
      this.curves = svg("svg", { class: "live-curves", role: "img" });
      this.marker = svg("g");
      this.bars = svg("svg", { class: "live-bars", role: "img" });
      this.reading = html("p", { class: "live-reading" });
      this.total = html("output", { class: "live-number" });
      this.stage = html("div", { class: "live-stage" },
        title("Probability of each class, along the path"), this.curves, this.path, this.reading,
        html("div", { class: "live-head" },
          title("Chebyshev coefficients", key("tick"), "|cₖ|", key("bar"), "k · |cₖ|"),
          html("div", { class: "live-total" }, title("effective degree, the sum of the bars"), this.total)),
        this.bars);
      this.curves.addEventListener("pointerdown", (event) => {
        this.curves.setPointerCapture(event.pointerId);
        this.drag(event);
      });
      this.curves.addEventListener("pointermove", (event) => this.drag(event));
    }

    // Changing

    choosePair() {
      const ends = [this.digits[this.from].image, this.digits[this.to].image];
      this.results = this.networks.map(({ layers }) => analyse(layers, ...ends, this.data));
      this.results.forEach(({ degree }, i) => {
        this.degrees[i].textContent = degree.toFixed(2);
        this.degrees[i].dataset.value = degree;
      });
      this.drawGhosts();
      this.chooseNetwork();
    }

    chooseNetwork() {
      const { name, title } = this.networks[this.network], degree = this.results[this.network].degree.toFixed(2);
      const [from, to] = [this.from, this.to].map((i) => article(this.digits[i].label));
      this.body.dataset.network = name;
      this.total.textContent = degree;
      this.curves.setAttribute("aria-label", `${title}: class probabilities along the path from ${from} to ${to}`);
      this.bars.setAttribute("aria-label", `${title}: sizes of the Chebyshev coefficients, effective degree ${degree}`);
      this.morph();
      this.move(this.at);
    }

    move(at) {
      this.at = at;
      const mixed = interpolate(this.digits[this.from].image, this.digits[this.to].image, at);
      const outputs = probabilities(this.networks[this.network].layers, mixed);
      const best = outputs.indexOf(Math.max(...outputs)), share = percent(outputs[best]);
      this.path.style.setProperty("--at", at);
      this.image.querySelectorAll("rect").forEach((cell, i) => cell.setAttribute("fill-opacity", mixed[i].toFixed(3)));
      this.drawMarker(outputs);
      const place = `${Math.round(100 * at)}% of the way`;
      this.reading.replaceChildren(`${place}: the network says `, html("b", {}, `${best}`), ` with ${share}`);
      this.slider.value = 100 * at;
      this.slider.setAttribute("aria-valuetext", `${place}: ${best} with ${share}`);
    }

    drag(event) {
      if (event.buttons !== 1) return;
      const { left, width } = this.curves.getBoundingClientRect();
      this.move(Math.min(1, Math.max(0, (event.clientX - left - INSET) / (width - 2 * INSET))));
    }

    resize() {
      if (this.stage.clientWidth === this.width) return;
      this.width = this.stage.clientWidth;
      this.paint(this.shown);
      this.drawGhosts();
      this.move(this.at);
    }

    // A gentle sweep along the path, until the picture is touched.
    sweep() {
      let playing = !calm.matches, visible = false, phase = 0, previous = null;
      const stop = () => { playing = false; };
      for (const kind of ["pointerdown", "keydown", "focusin"]) this.root.addEventListener(kind, stop, { once: true });
      const step = (now) => {
        if (!playing || !visible) return;
        phase += (now - (previous ?? now)) / SWEEP;
        previous = now;
        this.move(0.5 - 0.5 * Math.cos(2 * Math.PI * phase));
        requestAnimationFrame(step);
      };
      new IntersectionObserver(([{ isIntersecting }]) => {
        if (isIntersecting && !visible) {
          previous = null;
          requestAnimationFrame(step);
        }
        visible = isIntersecting;
      }).observe(this.root);
    }

    // Drawing

    x(alpha) { return INSET + alpha * (this.width - 2 * INSET); }

    isEnd(c) { return c === this.digits[this.from].label || c === this.digits[this.to].label; }

    // From what is shown to the chosen network: its values along the path, its spectrum, and the height of the bars,
    // which all networks share so that they can be compared.
    morph() {
      const { values, spectrum } = this.results[this.network];
      const top = Math.max(...this.results.flatMap((each) => each.spectrum.map((size, k) => Math.max(k, 1) * size)));
      const end = Float64Array.from([...values.flatMap((each) => [...each]), ...spectrum, top]);
      const start = this.shown, began = performance.now();
      cancelAnimationFrame(this.morphing);
      if (!start || calm.matches) {
        this.paint(end);
        return;
      }
      const step = (now) => {
        const left = 1 - Math.min(1, Math.max(0, now - began) / MORPH);
        this.paint(end.map((value, i) => value + left ** 3 * (start[i] - value)));
        if (left) this.morphing = requestAnimationFrame(step);
      };
      this.morphing = requestAnimationFrame(step);
    }

    paint(numbers) {
      const count = this.data.nodes * CLASSES;
      this.shown = numbers;
      this.drawCurves((c, i) => numbers[i * CLASSES + c]);
      this.drawBars(Array.from(numbers.subarray(count, -1)), numbers[numbers.length - 1]);
    }

    drawCurves(value) {
      const { alpha } = this.results[this.network];
      const grid = ["0", "½", "1"].flatMap((text, i) => [
        svg("line", { class: "live-grid", x1: this.x(0), x2: this.x(1), y1: y(i / 2), y2: y(i / 2) }),
        svg("text", { x: this.x(0) - 16, y: y(i / 2) + 4, "text-anchor": "end" }, text)]);
      const line = (c, kind) => {
        const points = alpha.map((each, i) => `${this.x(each).toFixed(1)} ${y(value(c, i)).toFixed(1)}`);
        return svg("path", { class: kind, d: `M${points.join("L")}` });
      };
      const label = (c, place) => svg("text", { ...place, "text-anchor": "middle" }, `${c}`);
      const badge = (c, i, at) =>
        svg("g", { class: "live-badge", transform: `translate(${this.x(at)} ${y(value(c, i))})` },
          svg("circle", { r: 10 }), label(c, { y: 4.5 }));
      const peak = (c) => alpha.reduce((best, _, i) => (value(c, i) > value(c, best) ? i : best), 0);
      const others = [...Array(CLASSES).keys()].filter((c) => !this.isEnd(c) && value(c, peak(c)) > 0.02);
      const labels = others.filter((c) => value(c, peak(c)) > 0.15).map((c) =>
        label(c, { class: "live-peak", x: this.x(alpha[peak(c)]), y: y(value(c, peak(c))) - 7 }));
      const [from, to] = [this.from, this.to].map((i) => this.digits[i].label);
      this.curves.setAttribute("viewBox", `0 0 ${this.width} ${y(0) + CURVES.bottom}`);
      this.curves.replaceChildren(...grid, ...others.map((c) => line(c, "live-other")), line(from, "live-ends"),
        line(to, "live-ends"), ...labels, this.marker, badge(from, 0, 0), badge(to, alpha.length - 1, 1));
    }

    drawMarker(outputs) {
      const at = this.x(this.at);
      const dots = Array.from(outputs, (probability, c) => {
        const kind = this.isEnd(c) ? { class: "live-dot", r: 4.5 } : { class: "live-dot live-faint", r: 3 };
        return this.isEnd(c) || probability > 0.05 ? [svg("circle", { ...kind, cx: at, cy: y(probability) })] : [];
      });
      const line = { class: "live-marker", x1: at, x2: at, y1: y(1) - 8, y2: y(0) + CURVES.bottom };
      this.marker.replaceChildren(svg("line", line), ...dots.flat());
    }

    drawBars(spectrum, top) {
      const slot = (this.width - 2 * INSET) / this.data.degree, bar = Math.max(2, slot * 0.62);
      const base = BARS.top + BARS.height, height = (size) => (size / top) * BARS.height;
      const place = (k) => INSET + k * slot;
      const columns = spectrum.map((size, k) => {
        const left = place(k) - bar / 2, weighted = height(k * size), tick = base - height(size);
        return weighted + height(size) < 1 ? "" : svg("g", {},
          svg("title", {}, `k = ${k}: |cₖ| = ${size.toPrecision(2)}, k · |cₖ| = ${(k * size).toPrecision(2)}`),
          svg("rect", { class: "live-bar", x: left, width: bar, y: base - weighted, height: weighted, rx: 1.5 }),
          svg("line", { class: "live-tick", x1: left, x2: left + bar, y1: tick, y2: tick }));
      });
      const numbers = spectrum.map((_, k) => (k % 10 ? "" : svg("text",
        { x: place(k), y: base + 17, "text-anchor": "middle" }, k ? `${k}` : "k = 0")));
      const floor = svg("line", { class: "live-grid", x1: 0, x2: this.width, y1: base, y2: base });
      this.bars.setAttribute("viewBox", `0 0 ${this.width} ${base + BARS.bottom}`);
      this.bars.replaceChildren(floor, ...columns, ...numbers);
    }

    drawGhosts() {
      const count = Math.max(5, Math.round((this.width - 2 * INSET) / 90) + 1);
      this.ghosts.replaceChildren(...Array.from({ length: count }, (_, i) => {
        const at = i / (count - 1), mixed = interpolate(this.digits[this.from].image, this.digits[this.to].image, at);
        return html("div", { class: "live-ghost", style: `--at: ${at}` }, drawDigit(mixed));
      }));
    }
  }

  const start = () =>
    document.querySelectorAll(".effdeg-live").forEach((root, id) => new Picture(root, window.effdegLive, id));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
