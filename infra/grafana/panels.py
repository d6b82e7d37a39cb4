"""panels.py - runs the dashboards' queries as Grafana sends them.

Grafana expands macros and variables itself, and sends SQL to TimescaleDB and PromQL to Prometheus.
This module does the same for every panel, variable and annotation of infra/grafana/dashboards, and
reports failed and empty queries. `picture` draws the results panel by panel in the dashboard's grid:
not like Grafana, but enough to compare each result with its panel's title."""

import datetime
import html
import json
import pathlib
import re
import subprocess
import urllib.parse
import urllib.request

FOLDER = pathlib.Path(__file__).resolve().parent / "dashboards"
INTERVAL_S = 10
# Points of a series that are drawn, and series of a panel.
POINTS_MAX, SERIES_MAX = 400, 12


def dashboards():
    return [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]


class Sources:
    """`psql(sql)` gives JSON text of the rows; `prometheus` is an address."""

    def __init__(self, psql, prometheus, since, until):
        self.psql, self.prometheus, self.since, self.until = psql, prometheus, since, until

    def stamp(self, when):
        return "'" + datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") + "'"

    def expand(self, sql, variables):
        """Expands macros like Grafana's PostgreSQL source with TimescaleDB; other macros are refused."""
        sql = sql.replace("$__interval", "%ds" % INTERVAL_S)
        begin, end = self.stamp(self.since), self.stamp(self.until)
        sql = re.sub(r"\$__timeFilter\(([^)]*)\)", lambda m: "%s BETWEEN %s AND %s" % (m[1], begin, end), sql)
        sql = re.sub(r"\$__timeGroup\(([^,)]*),\s*'?([^,)']*)'?\)", lambda m: "time_bucket('%s', %s)" % (m[2], m[1]), sql)
        sql = sql.replace("$__timeFrom()", begin).replace("$__timeTo()", end)
        for name, values in variables.items():
            quoted = ",".join("'" + value.replace("'", "''") + "'" for value in values)
            sql = re.sub(r"\$(?:%s\b|\{%s\})" % (name, name), lambda m: quoted, sql)
        if "$" in sql:
            raise ValueError("a macro or variable that nobody expands: " + sql[sql.index("$"):][:40])
        return sql

    def rows(self, sql, variables):
        return json.loads(self.psql(
            "SELECT coalesce(json_agg(row_to_json(r)), '[]') FROM (%s) r" % self.expand(sql, variables).rstrip("; ")))

    def ask_prometheus(self, path, **query):
        address = "%s/api/v1/%s?%s" % (self.prometheus, path, urllib.parse.urlencode(query))
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)["data"]

    def metrics(self, expr, variables, instant):
        expr = expr.replace("$__rate_interval", "20s").replace("$__interval", "%ds" % INTERVAL_S)
        for name, values in variables.items():
            expr = re.sub(r"\$(?:%s\b|\{%s\})" % (name, name), "(" + "|".join(values) + ")", expr)
        if instant:
            return self.ask_prometheus("query", query=expr, time=self.until)["result"]
        return self.ask_prometheus("query_range", query=expr, start=self.since, end=self.until, step=INTERVAL_S)["result"]

    def variables(self, board):
        found = {}
        for variable in board["templating"]["list"]:
            if variable["type"] == "custom":
                found[variable["name"]] = variable["query"].split(",")
            elif variable["type"] == "query" and variable["datasource"]["type"] == "prometheus":
                label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
                found[variable["name"]] = sorted({entry["metric"][label[2]] for entry in self.metrics(label[1], {}, True)})
            elif variable["type"] == "query":
                rows = self.rows(variable["query"], {})
                found[variable["name"]] = [str(row.get("__value", next(iter(row.values())))) for row in rows]
        return found

    def panel(self, panel, variables):
        """Series or rows of a panel: a list of (name, [(time, value)]), or a list of rows for a table."""
        if panel["type"] == "table":
            return self.rows(panel["targets"][0]["rawSql"], variables)
        series = {}
        for target in panel["targets"]:
            if target["datasource"]["type"] == "prometheus":
                for entry in self.metrics(target["expr"], variables, target["instant"]):
                    name = re.sub(r"{{(\w+)}}", lambda m: entry["metric"].get(m[1], ""), target["legendFormat"])
                    values = entry.get("values") or [entry["value"]]
                    series[name] = [(float(at), float(value)) for at, value in values if value != "NaN"]
                continue
            for row in self.rows(target["rawSql"], variables):
                at = datetime.datetime.fromisoformat(row.pop("time")).timestamp()
                label = row.pop("metric", None)
                for column, value in row.items():
                    if value is not None:
                        series.setdefault(str(label if label is not None else column), []).append((at, float(value)))
        return [(name, points) for name, points in series.items() if points]


def run_all(sources):
    """Every query of every dashboard: the results, and the errors."""
    results, complaints, asked = {}, [], 0
    for board in dashboards():
        variables = sources.variables(board)
        for name, values in variables.items():
            if not values:
                complaints.append("%s: the variable %s has no values" % (board["title"], name))
        results[board["uid"]] = {}
        for panel in board["panels"]:
            where = "%s / %s" % (board["title"], panel["title"])
            asked += len(panel["targets"])
            try:
                found = sources.panel(panel, variables)
            except Exception as error:  # any error of a source about the query
                complaints.append("%s: %s" % (where, error))
                continue
            results[board["uid"]][panel["id"]] = found
            if panel["type"] == "table" and found:
                void = [column for column in found[0] if all(row[column] is None for row in found)]
                complaints += ["%s: nothing in the column %s" % (where, column) for column in void]
            whole = panel["datasource"]["type"] == "prometheus" and "may be absent" not in panel["description"]
            expected = len(panel["targets"]) if whole and panel["type"] != "table" else 1
            if len(found) < expected:
                complaints.append("%s: %d answers of %d" % (where, len(found), expected))
        for annotation in board["annotations"]["list"]:
            asked += 1
            try:
                if annotation["datasource"]["type"] == "prometheus":
                    sources.metrics(annotation["expr"], variables, False)
                else:
                    sources.rows(annotation["target"]["rawSql"], variables)
            except Exception as error:
                complaints.append("%s / annotation %s: %s" % (board["title"], annotation["name"], error))
    return results, complaints, asked


COLOURS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#fade2a", "#1f60c4", "#fa6400", "#c4162a", "#8f3bb8"]


def drawn(panel, found, since, until, width, height):
    if not found:
        return "<p class=none>No data</p>"
    if panel["type"] == "table":
        head = [key for key in found[0] if key != "id"]
        body = "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape(str(shown(row[key]))) for key in head) for row in found[:12])
        return "<table><tr>%s</tr>%s</table>" % ("".join("<th>%s</th>" % html.escape(key) for key in head), body)
    if panel["type"] in ("stat", "bargauge"):
        most = max(abs(points[-1][1]) for _, points in found) or 1
        line = "<div class=bar><span>%s</span><b>%s</b><i style='width:%d%%'></i></div>"
        return "".join(line % (html.escape(name), shown(points[-1][1]), 100 * abs(points[-1][1]) / most) for name, points in found[:SERIES_MAX])
    found = found[:SERIES_MAX]
    values = [value for _, points in found for _, value in points]
    low, high = min(values), max(values)
    low, high = (low - 1, high + 1) if low == high else (min(low, 0) if panel["fieldConfig"]["defaults"].get("min") == 0 else low, high)
    lines = "".join("<polyline fill=none stroke-width=1.5 stroke='%s' points='%s'/>" % (
        COLOURS[at % len(COLOURS)],
        " ".join("%.1f,%.1f" % ((when - since) / (until - since) * width, height - (value - low) / (high - low) * height)
                 for when, value in points[:: len(points) // POINTS_MAX + 1])) for at, (_, points) in enumerate(found))
    legend = " ".join("<em style='color:%s'>%s %s</em>" % (COLOURS[at % len(COLOURS)], html.escape(name), shown(points[-1][1]))
                      for at, (name, points) in enumerate(found))
    return "<small>%s to %s</small><svg width=%d height=%d>%s</svg><br>%s" % (shown(low), shown(high), width, height, lines, legend)


def shown(value):
    return "%.4g" % value if isinstance(value, float) else value


def picture(board, found, since, until, chromium, file):
    """One dashboard as a PNG: panels in their grid with the results of their queries."""
    unit, row = 60, 34
    page = ["""<!doctype html><meta charset=utf-8><style>body{background:#111217;color:#ccccdc;font:12px sans-serif;margin:0;position:relative}
      div.p{position:absolute;background:#181b1f;border:1px solid #2c3033;box-sizing:border-box;padding:6px;overflow:hidden}
      h4{margin:0 0 4px}table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:2px 6px;border-bottom:1px solid #2c3033}
      .bar{position:relative;padding:2px}.bar span{display:inline-block;width:45%}.bar i{display:block;height:4px;background:#73bf69}
      em{font-style:normal;margin-right:10px;font-size:11px}.none{color:#888}small{color:#888}</style>""",
            "<h3 style='padding:8px;margin:0'>%s</h3>" % html.escape(board["title"])]
    bottom = 0
    for panel in board["panels"]:
        at = panel["gridPos"]
        width, height = at["w"] * unit, at["h"] * row
        bottom = max(bottom, at["y"] * row + height)
        page.append("<div class=p style='left:%dpx;top:%dpx;width:%dpx;height:%dpx'><h4>%s <small>%s</small></h4>%s</div>" % (
            at["x"] * unit, 40 + at["y"] * row, width, height, html.escape(panel["title"]),
            panel["fieldConfig"]["defaults"].get("unit", ""),
            drawn(panel, found.get(panel["id"]), since, until, width - 16, height - 90)))
    source = pathlib.Path(file).with_suffix(".html")
    source.write_text("".join(page))
    subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars",
                    "--screenshot=%s" % file, "--window-size=%d,%d" % (24 * unit, bottom + 50), source.as_uri()],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
