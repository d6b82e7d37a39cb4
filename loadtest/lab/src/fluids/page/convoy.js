var NS = "http://www.w3.org/2000/svg";
function make(parent, name, attributes, text) {
  var element = document.createElementNS(NS, name);
  for (var key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  parent.appendChild(element);
  return element;
}
function html(parent, name, text) {
  var element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  parent.appendChild(element);
  return element;
}

// The way, seen from above.
var SIZE = 520, EDGE = 24;
var all = data.way.concat(data.stations.map(function (station) { return station[1]; }));
data.body.forEach(function (body) { all = all.concat(body); });
function ends(axis) {
  return all.reduce(function (range, at) {
    return [Math.min(range[0], at[axis]), Math.max(range[1], at[axis])];
  }, [Infinity, -Infinity]);
}
var xs = ends(0), ys = ends(1);
var scale = (SIZE - 2 * EDGE) / Math.max(xs[1] - xs[0], ys[1] - ys[0], 1);
var height = (ys[1] - ys[0]) * scale + 2 * EDGE;
function place(at) {
  return [EDGE + (at[0] - xs[0]) * scale, height - EDGE - (at[1] - ys[0]) * scale];
}
function path(points) {
  return points.map(function (at) { return place(at).join(","); }).join(" ");
}
var controls = html(root, "div");
controls.className = "controls";
var play = html(controls, "button", "Play");
var slider = html(controls, "input");
slider.type = "range";
slider.min = 0;
slider.max = data.times.length - 1;
slider.value = 0;
slider.setAttribute("aria-label", "time on the way");
var clock = html(controls, "output");
var panels = html(root, "div");
panels.className = "panels";
var map = make(panels, "svg", { width: SIZE, height: height, role: "img" });
make(map, "title", {}, "Way of the convoy, stations, and the rates to them");
make(map, "polyline", { points: path(data.way), fill: "none", stroke: "#bbbbbb", "stroke-width": 2 });
var links = data.routes.map(function (route) {
  return make(map, "line", { stroke: route.colour, "stroke-linecap": "round" });
});
data.stations.forEach(function (station) {
  var at = place(station[1]);
  make(map, "path", {
    d: "M" + (at[0] - 7) + " " + (at[1] - 7) + "l14 14m0 -14l-14 14",
    stroke: "#222222", "stroke-width": 3
  });
  make(map, "text", { x: at[0] + 11, y: at[1] - 6, "font-size": 14, "font-weight": "bold",
    stroke: "#ffffff", "stroke-width": 3, "paint-order": "stroke" }, station[0]);
});
var body = make(map, "polyline", {
  fill: "none", stroke: "#222222", "stroke-width": 6, "stroke-linecap": "round"
});
var names = data.nodeNames.map(function (name) {
  return [make(map, "circle", { r: 6, fill: "#ffffff", stroke: "#222222", "stroke-width": 2 }),
    make(map, "text", { "font-size": 12 }, name)];
});

// Rate and capacity of each route.
var ROW = 34, BAR = 230, LEFT = 128;
var bars = make(panels, "svg", { width: 450, height: data.routes.length * ROW + 56, role: "img" });
make(bars, "title", {}, "Rate within capacity, by route");
var most = data.routes.reduce(function (sum, route) {
  return Math.max(sum, route.nominal);
}, 1);
var rows = data.routes.map(function (route, index) {
  var y = index * ROW + 8;
  make(bars, "text", { x: LEFT - 6, y: y + 16, "font-size": 12, "text-anchor": "end" }, route.name);
  var rate = make(bars, "rect", { x: LEFT, y: y, height: 22, fill: route.colour, "fill-opacity": 0.75 });
  var capacity = make(bars, "rect", { x: LEFT, y: y, height: 22, fill: "none", stroke: "#222222" });
  var text = make(bars, "text", { y: y + 16, "font-size": 12 });
  return { rate: rate, capacity: capacity, text: text };
});
var total = make(bars, "text", {
  x: LEFT, y: data.routes.length * ROW + 30, "font-size": 14, "font-weight": "bold"
});
make(bars, "text", { x: LEFT, y: data.routes.length * ROW + 50, "font-size": 12, fill: "#555555" },
  "filled: rate; frame: capacity");

// The sum over time, with a cursor.
var WIDE = 960, TALL = 150;
var course = make(root, "svg", { width: "100%", viewBox: "0 0 " + WIDE + " " + TALL, role: "img" });
make(course, "title", {}, "Sum of the rates over time");
var sums = data.times.map(function (_, at) {
  return data.routes.reduce(function (sum, route) { return sum + route.rate[at]; }, 0);
});
var peak = Math.max.apply(null, sums.concat([1]));
function along(at) { return 40 + at / Math.max(data.times.length - 1, 1) * (WIDE - 60); }
function up(value) { return TALL - 24 - value / peak * (TALL - 44); }
make(course, "polyline", {
  points: sums.map(function (sum, at) { return along(at) + "," + up(sum); }).join(" "),
  fill: "none", stroke: "#0072b2", "stroke-width": 2
});
make(course, "line", { x1: 40, x2: WIDE - 20, y1: TALL - 24, y2: TALL - 24, stroke: "#222222" });
make(course, "text", { x: 36, y: up(peak) + 4, "font-size": 12, "text-anchor": "end" }, peak.toFixed(0));
make(course, "text", { x: 36, y: up(0) + 4, "font-size": 12, "text-anchor": "end" }, "0");
make(course, "text", { x: 44, y: 12, "font-size": 12 }, "sum of the rates");
for (var tick = 0; tick <= data.times[data.times.length - 1]; tick += 60) {
  var share = tick / Math.max(data.times[data.times.length - 1], 1) * (data.times.length - 1);
  make(course, "text", { x: along(share), y: TALL - 8, "font-size": 12, "text-anchor": "middle" }, tick + " s");
}
var cursor = make(course, "line", { y1: 16, y2: TALL - 24, stroke: "#d55e00", "stroke-width": 2 });

function show(at) {
  clock.textContent = data.times[at].toFixed(1) + " s, sum " + sums[at].toFixed(1);
  body.setAttribute("points", path(data.body[at]));
  names.forEach(function (pair, index) {
    var where = place(data.nodes[at][index]);
    pair[0].setAttribute("cx", where[0]);
    pair[0].setAttribute("cy", where[1]);
    pair[1].setAttribute("x", where[0] + 9);
    pair[1].setAttribute("y", where[1] + 16);
  });
  data.routes.forEach(function (route, index) {
    var rate = route.rate[at], capacity = route.capacity[at], row = rows[index];
    row.rate.setAttribute("width", rate / most * BAR);
    row.capacity.setAttribute("width", capacity / most * BAR);
    row.text.setAttribute("x", LEFT + capacity / most * BAR + 6);
    row.text.textContent = rate.toFixed(1) + " of " + capacity.toFixed(1);
    if (route.station) {
      var from = place(data.nodes[at][route.node]), to = place(route.station);
      links[index].setAttribute("x1", from[0]);
      links[index].setAttribute("y1", from[1]);
      links[index].setAttribute("x2", to[0]);
      links[index].setAttribute("y2", to[1]);
      links[index].setAttribute("stroke-width", 10 * rate / most);
    }
  });
  total.textContent = "sum " + sums[at].toFixed(1);
  cursor.setAttribute("x1", along(at));
  cursor.setAttribute("x2", along(at));
}
slider.addEventListener("input", function () { show(Number(slider.value)); });
var timer = null;
function stop() {
  clearInterval(timer);
  timer = null;
  play.textContent = "Play";
}
play.addEventListener("click", function () {
  if (timer) return stop();
  play.textContent = "Stop";
  timer = setInterval(function () {
    var next = Number(slider.value) + 1;
    if (next >= data.times.length) return stop();
    slider.value = next;
    show(next);
  }, 50);
});
var asked = /[#&]moment=(\d+)/.exec(location.hash);
if (asked) slider.value = asked[1];
show(Number(slider.value));
