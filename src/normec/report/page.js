"use strict";
// The chart: what is drawn follows from the controls, which the address keeps after its #.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b", "#7f7f7f"];
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const [metric, axis, smoothing, smoothed, chart] = ["metric", "axis", "smoothing", "smoothed", "chart"].map((id) => document.getElementById(id));
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;"); // the library reads markup in its texts
  const place = new URLSearchParams(location.hash.slice(1));

  const offer = (select, names) => Object.entries(names).forEach(([key, name]) => select.add(new Option(name, key)));
  const named = (key) => key.replace(/^metrics\./, "").replaceAll("_", " ");
  offer(metric, Object.fromEntries(data.metrics.map((key) => [key, named(key)])));
  offer(axis, data.axes);
  const boxes = data.runs.map((run, index) => {
    const [label, box, swatch] = ["label", "input", "span"].map((name) => document.createElement(name));
    box.type = "checkbox";
    box.checked = !place.getAll("off").includes(run.name);
    box.id = `run-${index}`;
    swatch.className = "swatch";
    swatch.style.color = colours[index % colours.length];
    swatch.style.borderTopStyle = { solid: "solid", dash: "dashed", dot: "dotted", dashdot: "dashed" }[dash(index)];
    label.append(box, swatch, run.seeds > 1 ? `${run.name} (${run.seeds} seeds)` : run.name);
    document.getElementById("runs").append(label);
    return box;
  });
  if (data.metrics.includes(place.get("metric"))) metric.value = place.get("metric");
  if (Object.hasOwn(data.axes, place.get("axis") ?? "")) axis.value = place.get("axis");
  if (data.runs.some((run) => run.seeds > 1)) {
    document.getElementById("band").textContent = "Lines are means over seeds, bands reach one standard deviation to each side.";
  }
  if (data.left_out) document.getElementById("left-out").textContent = `${data.left_out} rounds of these runs are not drawn, to keep this file small.`;

  function dash(index) {
    return dashes[Math.floor(index / colours.length) % dashes.length];
  }

  function points(run, weight) {
    const [xs, ys, low, high, last] = [[], [], [], [], { value: null }];
    const columns = run.columns;
    const spread = run.spread?.[metric.value];
    (columns[metric.value] || []).forEach((y, row) => {
      const x = columns[axis.value][row];
      if (y === null || x === null || x === undefined) return;
      last.value = last.value === null ? y : weight * last.value + (1 - weight) * y;
      xs.push(x);
      ys.push(last.value);
      const width = spread?.[row] ?? 0;
      low.push(last.value - width);
      high.push(last.value + width);
    });
    return { x: xs, y: ys, low, high, banded: Boolean(spread) };
  }

  function band(drawn, colour) {
    const look = { type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    const fill = { fill: "tonexty", fillcolor: `${colour}33` };
    return [{ ...look, x: drawn.x, y: drawn.low, name: "band" }, { ...look, ...fill, x: drawn.x, y: drawn.high, name: "band" }];
  }

  function draw() {
    const weight = Number(smoothing.value);
    smoothed.textContent = weight ? weight.toFixed(2) : "off";
    const style = getComputedStyle(document.documentElement);
    const [ink, paper, line] = ["--ink", "--paper", "--line"].map((name) => style.getPropertyValue(name).trim());
    const traces = data.runs.flatMap((run, index) => {
      if (!boxes[index].checked) return [];
      const colour = colours[index % colours.length];
      const drawn = points(run, weight);
      const look = { color: colour, dash: dash(index), width: 2 };
      const mode = drawn.x.length < 2 ? "markers" : "lines";
      const line = { x: drawn.x, y: drawn.y, name: plain(run.name), type: "scatter", mode, line: look };
      return drawn.banded ? [...band(drawn, colour), line] : [line];
    });
    const narrow = chart.clientWidth < 500;
    const title = (text) => ({ title: { text: plain(text) }, gridcolor: line, zerolinecolor: line, automargin: true });
    Plotly.react(
      chart,
      traces,
      {
        xaxis: title(data.axes[axis.value] || ""),
        yaxis: title(named(metric.value) + (weight ? ` (smoothed ${weight.toFixed(2)})` : "")),
        showlegend: false,
        hovermode: "x unified",
        margin: { l: narrow ? 40 : 60, r: 10, t: 36, b: 50 },
        font: { color: ink, size: narrow ? 11 : 12 },
        hoverlabel: { bgcolor: paper, font: { color: ink }, namelength: -1 },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
      },
      { responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover" },
    );
    const kept = new URLSearchParams({ metric: metric.value, axis: axis.value });
    data.runs.forEach((run, index) => boxes[index].checked || kept.append("off", run.name));
    history.replaceState(null, "", `#${kept}`);
  }

  function drawAudits() {
    const style = getComputedStyle(document.documentElement);
    const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
    document.querySelectorAll(".histogram").forEach((place, index) => {
      const audit = data.audits[index];
      const middles = audit.edges.slice(1).map((edge, bin) => (edge + audit.edges[bin]) / 2);
      const traces = Object.entries(audit.counts).map(([name, counts], group) => {
        const total = counts.reduce((sum, count) => sum + count, 0) || 1;
        const look = { color: colours[group], shape: "hvh" };
        return { x: middles, y: counts.map((count) => count / total), name, type: "scatter", mode: "lines", line: look };
      });
      const axis = (text) => ({ title: { text }, gridcolor: line, zerolinecolor: line, automargin: true });
      const layout = {
        xaxis: axis("along one direction, over the claimed standard deviation of the noise"),
        yaxis: axis("share"),
        legend: { orientation: "h", y: 1.15 },
        margin: { l: 60, r: 10, t: 30, b: 50 },
        font: { color: ink },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
      };
      Plotly.react(place, traces, layout, { responsive: true, displaylogo: false });
    });
  }

  document.getElementById("controls").addEventListener("input", draw);
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("only-differences").addEventListener("input", (event) =>
    document.getElementById("settings").classList.toggle("only-differences", event.target.checked),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [draw(), drawAudits()]);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
  draw();
  drawAudits();
})();
