// The live picture: outputs of small networks along the straight path between two digits, the Chebyshev coefficients
// of these curves and their effective degree, all computed here. weights.js, which make_weights.py writes, comes first.
(() => {
  "use strict";
  const SIDE = 8, CLASSES = 10, INSET = 32; // INSET is half of the thumb in live.css
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

  function mount(root, data, id) {
    const pixels = decode(data.digits, Uint8Array).map((value) => value / 16);
    const digits = data.labels.map((label, i) => ({ label, image: pixels.slice(i * 64, (i + 1) * 64) }));
    const networks = data.networks.map((each) => ({ ...each, layers: each.layers.map(decodeLayer) }));
    const state = { from: data.start[0], to: data.start[1], network: 0, at: 0.5 };
    let results = [], shown = null, width = 0, morphing = 0;

    // Controls

    function picker(end, legend) {
      const tiles = digits.map(({ label, image }, i) => {
        const writing = data.labels.slice(0, i + 1).filter((other) => other === label).length;
        const input = html("input", { type: "radio", name: `live-${end}-${id}`, value: i, "aria-label": `${label} (${writing})` });
        input.checked = i === state[end];
        input.addEventListener("change", () => { state[end] = i; choosePair(); });
        return html("label", { class: "live-digit" }, input, drawDigit(image));
      });
      return html("fieldset", {}, html("legend", {}, legend), html("div", { class: "live-strip" }, ...tiles));
    }

    const degrees = networks.map(() => html("strong", { class: "live-number" }));
    const cards = networks.map(({ name, title, accuracy, mean }, i) => {
      const input = html("input", { type: "radio", name: `live-network-${id}`, value: name });
      input.checked = i === state.network;
      input.addEventListener("change", () => { state.network = i; chooseNetwork(); });
      return html("label", { class: "live-network", "data-network": name },
        input, html("b", {}, title), degrees[i],
        html("span", { class: "live-facts" },
          html("span", {}, `${percent(accuracy, 1)} right`), html("span", {}, `mean ${mean.toFixed(2)}`)));
    });

    const slider = html("input", { type: "range", min: 0, max: 100, step: "any", "aria-label": "Place on the path" });
    slider.addEventListener("input", () => { state.at = slider.value / 100; move(); });
    const image = html("div", { class: "live-image" }, drawDigit(digits[0].image));
    const ghosts = html("div", { "aria-hidden": "true" });
    const path = html("div", { class: "live-path" }, ghosts, slider, image);
    const curves = svg("svg", { class: "live-curves", role: "img" });
    const marker = svg("g");
    const bars = svg("svg", { class: "live-bars", role: "img" });
    const reading = html("p", { class: "live-reading" });
    const total = html("output", { class: "live-number" });

    const key = (kind) => html("span", { class: `live-key live-${kind}`, "aria-hidden": "true" });
    const stage = html("div", { class: "live-stage" },
      html("div", { class: "live-head" }, html("p", { class: "live-title" }, "Probability of each class, along the path")),
      curves, path, reading,
      html("div", { class: "live-coefficients live-head" },
        html("p", { class: "live-title" }, "Chebyshev coefficients", key("tick"), "|cₖ|", key("bar"), "k · |cₖ|"),
        html("div", { class: "live-total" }, html("p", { class: "live-title" }, "effective degree, the sum of the bars"), total)),
      bars);
    const body = html("div", { class: "live-body" },
      html("div", { class: "live-controls" },
        html("div", { class: "live-pickers" }, picker("from", "From"), picker("to", "To")),
        html("fieldset", { class: "live-networks" },
          html("legend", {}, "Network, and its effective degree on this path"), html("div", {}, ...cards),
          html("p", { class: "live-note" }, `Right: of ${data.tested.toLocaleString("en")} held-out digits. Mean: of the effective ` +
            `degree over ${data.paths} paths between them, measured by effdeg.`))),
      stage);

    // Drawing

    const x = (alpha) => INSET + alpha * (width - 2 * INSET);
    const CURVES = { top: 22, height: 190, bottom: 8 }, BARS = { top: 12, height: 120, bottom: 22 };
    const y = (probability) => CURVES.top + (1 - probability) * CURVES.height;

    function drawCurves({ values }) {
      const { alpha } = results[state.network];
      const [from, to] = [digits[state.from].label, digits[state.to].label];
      const grid = [0, 0.5, 1].flatMap((p) => [
        svg("line", { class: "live-grid", x1: x(0), x2: x(1), y1: y(p), y2: y(p) }),
        svg("text", { x: x(0) - 16, y: y(p) + 4, "text-anchor": "end" }, p === 0.5 ? "½" : `${p}`)]);
      const value = (c, i) => values[i * CLASSES + c];
      const peak = (c) => alpha.reduce((best, _, i) => (value(c, i) > value(c, best) ? i : best), 0);
      const line = (c, kind) => {
        const points = alpha.map((each, i) => `${x(each).toFixed(1)} ${y(value(c, i)).toFixed(1)}`);
        return svg("path", { class: kind, d: `M${points.join("L")}` });
      };
      const badge = (c, i, at) => svg("g", { class: "live-badge", transform: `translate(${x(at)} ${y(value(c, i))})` },
        svg("circle", { r: 10 }), svg("text", { y: 4.5, "text-anchor": "middle" }, `${c}`));
      const others = [...Array(CLASSES).keys()].filter((c) => !isEnd(c) && value(c, peak(c)) > 0.02);
      const labels = others.filter((c) => value(c, peak(c)) > 0.15).map((c) => svg("text",
        { class: "live-peak", x: x(alpha[peak(c)]), y: y(value(c, peak(c))) - 7, "text-anchor": "middle" }, `${c}`));
      curves.setAttribute("viewBox", `0 0 ${width} ${CURVES.top + CURVES.height + CURVES.bottom}`);
      curves.replaceChildren(...grid, ...others.map((c) => line(c, "live-other")), line(from, "live-ends"),
        line(to, "live-ends"), ...labels, marker, badge(from, 0, 0), badge(to, alpha.length - 1, 1));
    }

    const isEnd = (c) => c === digits[state.from].label || c === digits[state.to].label;

    function drawBars({ spectrum, top }) {
      const slot = (width - 2 * INSET) / data.degree, bar = Math.max(2, slot * 0.62);
      const base = BARS.top + BARS.height, up = (size) => base - (size / top) * BARS.height;
      const place = (k) => INSET + k * slot;
      const seen = spectrum.flatMap((size, k) => ((Math.max(k, 1) * size) / top > 0.005 ? [[size, k]] : []));
      const columns = seen.map(([size, k]) => svg("g", {},
        svg("title", {}, `k = ${k}: |cₖ| = ${size.toPrecision(2)}, k · |cₖ| = ${(k * size).toPrecision(2)}`),
        svg("rect", { class: "live-bar", x: place(k) - bar / 2, width: bar, y: up(k * size), height: base - up(k * size), rx: 1.5 }),
        svg("line", { class: "live-tick", x1: place(k) - bar / 2, x2: place(k) + bar / 2, y1: up(size), y2: up(size) })));
      const numbers = [0, 10, 20, 30, 40].map((k) =>
        svg("text", { x: place(k), y: base + 17, "text-anchor": "middle" }, k ? `${k}` : "k = 0"));
      bars.setAttribute("viewBox", `0 0 ${width} ${base + BARS.bottom}`);
      bars.replaceChildren(svg("line", { class: "live-grid", x1: 0, x2: width, y1: base, y2: base }), ...columns, ...numbers);
    }

    function paint(numbers) {
      shown = numbers;
      const count = data.nodes * CLASSES;
      drawCurves({ values: numbers.subarray(0, count) });
      drawBars({ spectrum: Array.from(numbers.subarray(count, -1)), top: numbers.at(-1) });
    }

    // All networks share the scale of the bars, so that they can be compared.
    function target() {
      const top = Math.max(...results.flatMap(({ spectrum }) => spectrum.map((size, k) => Math.max(k * size, size))));
      const { values, spectrum } = results[state.network];
      return Float64Array.from([...values.flatMap((each) => [...each]), ...spectrum, top]);
    }

    function draw() {
      const end = target(), start = shown, began = performance.now();
      cancelAnimationFrame(morphing);
      if (!start || calm.matches) return paint(end);
      const step = (now) => {
        const done = Math.min(1, Math.max(0, now - began) / MORPH), eased = 1 - (1 - done) ** 3;
        paint(done < 1 ? end.map((value, i) => start[i] + eased * (value - start[i])) : end);
        if (done < 1) morphing = requestAnimationFrame(step);
      };
      morphing = requestAnimationFrame(step);
    }

    function drawGhosts() {
      const count = Math.max(5, Math.round((width - 2 * INSET) / 90) + 1);
      ghosts.replaceChildren(...Array.from({ length: count }, (_, i) => {
        const at = i / (count - 1), mixed = interpolate(digits[state.from].image, digits[state.to].image, at);
        return html("div", { class: "live-ghost", style: `--at: ${at}` }, drawDigit(mixed));
      }));
    }

    // Changes

    function choosePair() {
      results = networks.map(({ layers }) => analyse(layers, digits[state.from].image, digits[state.to].image, data));
      results.forEach(({ degree }, i) => {
        degrees[i].textContent = degree.toFixed(2);
        degrees[i].dataset.value = degree;
      });
      drawGhosts();
      chooseNetwork();
    }

    function chooseNetwork() {
      const { name, title } = networks[state.network], { degree } = results[state.network];
      const ends = `from ${article(digits[state.from].label)} to ${article(digits[state.to].label)}`;
      body.dataset.network = name;
      total.textContent = degree.toFixed(2);
      curves.setAttribute("aria-label", `Class probabilities of the network ${title} along the path ${ends}`);
      bars.setAttribute("aria-label", `Sizes of the Chebyshev coefficients; effective degree ${degree.toFixed(2)}`);
      draw();
      move();
    }

    function move() {
      const mixed = interpolate(digits[state.from].image, digits[state.to].image, state.at);
      const outputs = probabilities(networks[state.network].layers, mixed);
      const best = outputs.indexOf(Math.max(...outputs));
      path.style.setProperty("--at", state.at);
      image.querySelectorAll("rect").forEach((cell, i) => cell.setAttribute("fill-opacity", mixed[i].toFixed(3)));
      const dots = Array.from(outputs, (p, c) => [p, c]).filter(([p, c]) => isEnd(c) || p > 0.05).map(([p, c]) =>
        svg("circle", { class: isEnd(c) ? "live-dot" : "live-dot live-faint", cx: x(state.at), cy: y(p), r: isEnd(c) ? 4.5 : 3 }));
      const line = { class: "live-marker", x1: x(state.at), x2: x(state.at), y1: y(1) - 8, y2: y(0) + CURVES.bottom };
      marker.replaceChildren(svg("line", line), ...dots);
      reading.replaceChildren(`α = ${state.at.toFixed(2)}: the network says `, html("b", {}, `${best}`), ` with ${percent(outputs[best])}`);
      slider.value = 100 * state.at;
      slider.setAttribute("aria-valuetext", `α = ${state.at.toFixed(2)}: ${best} with ${percent(outputs[best])}`);
    }

    function drag(event) {
      if (event.buttons !== 1) return;
      const box = curves.getBoundingClientRect();
      state.at = Math.min(1, Math.max(0, (event.clientX - box.left - INSET) / (box.width - 2 * INSET)));
      move();
    }
    curves.addEventListener("pointerdown", (event) => {
      curves.setPointerCapture(event.pointerId);
      drag(event);
    });
    curves.addEventListener("pointermove", drag);

    // A gentle sweep along the path, until the picture is touched.
    function sweep() {
      let playing = !calm.matches, visible = false, phase = 0, previous = null;
      const stop = () => { playing = false; };
      for (const kind of ["pointerdown", "keydown", "focusin"]) root.addEventListener(kind, stop, { once: true });
      const step = (now) => {
        if (!playing || !visible) { previous = null; return; }
        phase += previous === null ? 0 : (now - previous) / SWEEP;
        previous = now;
        state.at = 0.5 - 0.5 * Math.cos(2 * Math.PI * phase);
        move();
        requestAnimationFrame(step);
      };
      new IntersectionObserver(([entry]) => {
        const appeared = entry.isIntersecting && !visible;
        visible = entry.isIntersecting;
        if (appeared) requestAnimationFrame(step);
      }).observe(root);
    }

    root.replaceChildren(body);
    width = stage.clientWidth;
    choosePair();
    sweep();
    new ResizeObserver(() => {
      if (stage.clientWidth === width) return;
      width = stage.clientWidth;
      paint(shown);
      drawGhosts();
      move();
    }).observe(stage);
  }

  const start = () =>
    document.querySelectorAll(".effdeg-live").forEach((root, id) => mount(root, window.effdegLive, id));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
