//! A plane seen from above: ways, marks, and a field in shades of grey; equal scales on both axes.

use std::fmt::Write;

use serde::Serialize;

use super::axis::Axis;
use super::csv::csv_field;
use super::svg::{self, Area, Canvas, INK, POINTS_MAX, WIDTH};

const PLANE: f64 = 440.0;
const SHADES: f64 = 24.0;
const CELLS_MAX: usize = 100;

/// Values at the cells of a grid.
#[derive(Debug, Clone, Serialize)]
pub struct Field {
    pub from: (f64, f64),
    pub to: (f64, f64),
    /// Cells in each direction.
    pub cells: usize,
    pub name: String,
    /// Row by row, the lowest first.
    pub values: Vec<f64>,
}

impl Field {
    pub fn new(
        from: (f64, f64),
        to: (f64, f64),
        cells: usize,
        name: &str,
        value: impl Fn(f64, f64) -> f64,
    ) -> Self {
        let cells = cells.clamp(1, CELLS_MAX);
        let mut field = Self {
            from,
            to,
            cells,
            name: name.to_owned(),
            values: Vec::with_capacity(cells * cells),
        };
        for row in 0..cells {
            for column in 0..cells {
                let (x, y) = field.middle(column, row);
                field.values.push(value(x, y));
            }
        }
        field
    }

    fn middle(&self, column: usize, row: usize) -> (f64, f64) {
        let place = |from: f64, to: f64, index: usize| {
            from + (to - from) * (index as f64 + 0.5) / self.cells as f64
        };
        (
            place(self.from.0, self.to.0, column),
            place(self.from.1, self.to.1, row),
        )
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Mark {
    pub name: String,
    pub at: (f64, f64),
    /// A cross; otherwise a dot.
    pub cross: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct Map {
    pub title: String,
    pub unit: String,
    pub ways: Vec<(String, Vec<(f64, f64)>)>,
    pub marks: Vec<Mark>,
    pub field: Option<Field>,
}

impl Map {
    pub fn new(title: &str, unit: &str) -> Self {
        Self {
            title: title.to_owned(),
            unit: unit.to_owned(),
            ways: Vec::new(),
            marks: Vec::new(),
            field: None,
        }
    }

    pub fn way(mut self, name: &str, points: &[(f64, f64)]) -> Self {
        self.ways.push((name.to_owned(), points.to_vec()));
        self
    }

    pub fn mark(mut self, name: &str, at: (f64, f64), cross: bool) -> Self {
        let name = name.to_owned();
        self.marks.push(Mark { name, at, cross });
        self
    }

    pub fn field(mut self, field: Field) -> Self {
        self.field = Some(field);
        self
    }

    pub fn csv(&self) -> String {
        let mut text = "kind,name,x,y,value\n".to_owned();
        for (name, points) in &self.ways {
            for (x, y) in points {
                let _ = writeln!(text, "way,{},{x},{y},", csv_field(name));
            }
        }
        for mark in &self.marks {
            let (x, y) = mark.at;
            let _ = writeln!(text, "mark,{},{x},{y},", csv_field(&mark.name));
        }
        if let Some(field) = &self.field {
            for (index, value) in field.values.iter().enumerate() {
                let (x, y) = field.middle(index % field.cells, index / field.cells);
                let _ = writeln!(text, "field,{},{x},{y},{value}", csv_field(&field.name));
            }
        }
        text
    }

    pub(crate) fn svg(&self) -> String {
        let ways = self.ways.iter().flat_map(|way| way.1.iter().copied());
        let marks = self.marks.iter().map(|mark| mark.at);
        let corners = self.field.iter().flat_map(|field| [field.from, field.to]);
        let all: Vec<(f64, f64)> = match &self.field {
            // Beyond the field nothing is drawn.
            Some(_) => corners.collect(),
            None => ways.chain(marks).collect(),
        };
        let range = |values: Vec<f64>| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if low < high { (low, high) } else { (-1.0, 1.0) }
        };
        let (x, y) = (
            range(all.iter().map(|at| at.0).collect()),
            range(all.iter().map(|at| at.1).collect()),
        );
        let margin = if self.field.is_some() { 0.0 } else { 0.06 };
        // Neither side much narrower than the other, for its ticks.
        let (width, height) = (x.1 - x.0, y.1 - y.0);
        let (width, height) = (width.max(height * 0.8), height.max(width / 4.0));
        let middle = ((x.0 + x.1) / 2.0, (y.0 + y.1) / 2.0);
        let per = ((WIDTH - 110.0) / width).min(PLANE / height) / (1.0 + 2.0 * margin);
        let (wide, high) = (width * (0.5 + margin), height * (0.5 + margin));
        let legend = svg::legend(
            &self
                .ways
                .iter()
                .map(|way| way.0.as_str())
                .collect::<Vec<_>>(),
        );
        let area = Area {
            left: 70.0,
            right: 70.0 + 2.0 * wide * per,
            top: legend.height + 4.0,
            bottom: legend.height + 4.0 + 2.0 * high * per,
        };
        let x = Axis::new("x", &self.unit).range(middle.0 - wide, middle.0 + wide);
        let y = Axis::new("y", &self.unit).range(middle.1 - high, middle.1 + high);
        let (along, up) = (x.fit(std::iter::empty()), y.fit(std::iter::empty()));
        let mut canvas = Canvas::new(area.bottom + 50.0, &self.title);
        let place = |at: (f64, f64)| {
            (
                area.x((at.0 - middle.0 + wide) / (2.0 * wide)),
                area.y((at.1 - middle.1 + high) / (2.0 * high)),
            )
        };
        svg::vertical(&mut canvas, area, &up, &y.text());
        svg::horizontal(&mut canvas, area, &along, &x.text());
        if let Some(field) = &self.field {
            shade(&mut canvas, field, area, place);
        }
        svg::frame(&mut canvas, area);
        for (index, ((name, points), at)) in self.ways.iter().zip(&legend.places).enumerate() {
            let sample = [(at.0, at.1 - 4.0), (at.0 + 20.0, at.1 - 4.0)];
            polyline(&mut canvas, &sample, index);
            canvas.words(at.0 + 26.0, at.1, 12.0, "start", name);
            let every = points.len().div_ceil(POINTS_MAX).max(1);
            let drawn: Vec<(f64, f64)> =
                points.iter().step_by(every).map(|at| place(*at)).collect();
            polyline(&mut canvas, &drawn, index);
        }
        let places: Vec<(f64, f64)> = self.marks.iter().map(|mark| place(mark.at)).collect();
        for (mark, at) in self.marks.iter().zip(&places) {
            draw(&mut canvas, mark, *at);
        }
        for label in labels(&self.marks, &places, area) {
            canvas.haloed(label.x, label.y, label.size, "start", label.text);
        }
        canvas.done()
    }
}

fn polyline(canvas: &mut Canvas, points: &[(f64, f64)], index: usize) {
    let mut path = String::new();
    for (x, y) in points {
        let _ = write!(path, "{x:.1},{y:.1} ");
    }
    let (colour, dash) = (svg::colour(index), svg::dash(index));
    canvas.raw(&format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
         stroke-dasharray=\"{dash}\"/>",
        path.trim_end()
    ));
}

fn draw(canvas: &mut Canvas, mark: &Mark, at: (f64, f64)) {
    let halo = "stroke=\"#ffffff\" stroke-width=\"6\"";
    let style = format!("stroke=\"{INK}\" stroke-width=\"2.5\"");
    if mark.cross {
        for style in [halo, style.as_str()] {
            canvas.line((at.0 - 6.0, at.1 - 6.0), (at.0 + 6.0, at.1 + 6.0), style);
            canvas.line((at.0 - 6.0, at.1 + 6.0), (at.0 + 6.0, at.1 - 6.0), style);
        }
    } else {
        canvas.raw(&format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{INK}\"/>",
            at.0, at.1
        ));
    }
}

/// The name of a mark, by the left end of its base line.
struct Label<'a> {
    x: f64,
    y: f64,
    size: f64,
    text: &'a str,
}

/// The names beside their marks, each at the corner where it hides least of marks and of names
/// before it. Names of crosses come first.
fn labels<'a>(marks: &'a [Mark], places: &[(f64, f64)], area: Area) -> Vec<Label<'a>> {
    let mut taken: Vec<[f64; 4]> = places
        .iter()
        .zip(marks)
        .map(|(at, mark)| {
            let half = if mark.cross { 7.0 } else { 4.0 };
            [at.0 - half, at.1 - half, at.0 + half, at.1 + half]
        })
        .collect();
    let mut order: Vec<usize> = (0..marks.len()).collect();
    order.sort_by_key(|&index| !marks[index].cross);
    let mut placed = Vec::with_capacity(marks.len());
    for index in order {
        let (mark, at) = (&marks[index], places[index]);
        let (size, shift) = if mark.cross { (13.0, 9.0) } else { (11.0, 6.0) };
        let width = svg::width_of(&mark.name, size);
        let corners = [
            (shift, -5.0),
            (shift, size + 2.0),
            (-shift - width, -5.0),
            (-shift - width, size + 2.0),
        ];
        let hidden = |corner: &(f64, f64)| -> f64 {
            let (x, y) = (at.0 + corner.0, at.1 + corner.1);
            let own = [x, y - size * 0.8, x + width, y + 2.0];
            let beyond = (area.left - own[0]).max(own[2] - WIDTH).max(0.0) * size;
            beyond + taken.iter().map(|other| common(own, *other)).sum::<f64>()
        };
        let best = corners
            .into_iter()
            .min_by(|one, two| hidden(one).total_cmp(&hidden(two)));
        let Some((dx, dy)) = best else { continue };
        let (x, y) = (at.0 + dx, at.1 + dy);
        taken.push([x, y - size * 0.8, x + width, y + 2.0]);
        placed.push(Label {
            x,
            y,
            size,
            text: &mark.name,
        });
    }
    placed
}

/// Area that two boxes share; left, top, right, bottom.
fn common(one: [f64; 4], two: [f64; 4]) -> f64 {
    let wide = one[2].min(two[2]) - one[0].max(two[0]);
    let high = one[3].min(two[3]) - one[1].max(two[1]);
    wide.max(0.0) * high.max(0.0)
}

/// Cells of one shade that stand together are one rectangle; dark is much.
fn shade(canvas: &mut Canvas, field: &Field, area: Area, place: impl Fn((f64, f64)) -> (f64, f64)) {
    let finite = field.values.iter().copied().filter(|it| it.is_finite());
    let most = finite.fold(0.0, f64::max).max(1e-12);
    let level = |value: f64| {
        (value / most * (SHADES - 1.0))
            .round()
            .clamp(0.0, SHADES - 1.0)
    };
    let grey = |level: f64| (255.0 - 175.0 * level / (SHADES - 1.0)).round() as u8;
    let step = (field.to.0 - field.from.0) / field.cells as f64;
    let rise = (field.to.1 - field.from.1) / field.cells as f64;
    for row in 0..field.cells {
        let values = &field.values[row * field.cells..(row + 1) * field.cells];
        let mut begin = 0;
        while begin < field.cells {
            let own = level(values[begin]);
            let end = (begin..field.cells)
                .take_while(|&at| level(values[at]) == own)
                .count()
                + begin;
            let low = field.from.1 + row as f64 * rise;
            let (left, bottom) = place((field.from.0 + begin as f64 * step, low));
            let (right, top) = place((field.from.0 + end as f64 * step, low + rise));
            let shade = grey(own);
            let style =
                format!("fill=\"rgb({shade},{shade},{shade})\" shape-rendering=\"crispEdges\"");
            // A little more than the cell, so that no white line shows between rows.
            canvas.rect(left, top, right - left + 0.5, bottom - top + 0.5, &style);
            begin = end;
        }
    }
    let (x, height) = (area.right + 14.0, 160.0);
    for index in 0..SHADES as usize {
        let shade = grey(SHADES - 1.0 - index as f64);
        let style = format!("fill=\"rgb({shade},{shade},{shade})\"");
        let tall = height / SHADES;
        canvas.rect(
            x,
            area.top + 22.0 + index as f64 * tall,
            14.0,
            tall + 0.5,
            &style,
        );
    }
    canvas.words(x, area.top + 10.0, 11.0, "start", &field.name);
    canvas.words(
        x + 18.0,
        area.top + 30.0,
        11.0,
        "start",
        &format!("{most:.0}"),
    );
    canvas.words(x + 18.0, area.top + 22.0 + height, 11.0, "start", "0");
}
