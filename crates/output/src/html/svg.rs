//! SVG plots. Colours come from the style of the page, which adapts to light, dark and print.

use std::fmt::Write;

use super::escaped;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 52.0;
const BOTTOM: f64 = 36.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 20.0;

/// Plots in a row are smaller, so that their text is not.
const SMALL_WIDTH: f64 = 320.0;
const SMALL_HEIGHT: f64 = 190.0;

fn open(what: &str, width: f64, height: f64) -> String {
    format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">", escaped(what))
}

/// From numbers to places on the plot.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    fn new(points: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
        };
        let widened = |(low, high): (f64, f64)| match low.is_finite() && high > low {
            // What cannot be below zero has no axis below zero.
            true if low >= 0.0 && low < high * 0.2 => (0.0, high * 1.08),
            true => (low - (high - low) * 0.05, high + (high - low) * 0.08),
            false if low.is_finite() => (low - 1.0, low + 1.0),
            false => (0.0, 1.0),
        };
        let x = bounds(&mut points.clone().map(|(x, _)| x));
        let y = bounds(&mut points.map(|(_, y)| y));
        Self { x: widened(x), y: widened(y) }
    }

    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        let share = |v: f64, (low, high): (f64, f64)| (v - low) / (high - low);
        (
            LEFT + share(x, self.x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - share(y, self.y) * (HEIGHT - BOTTOM - TOP),
        )
    }

    fn axes(&self, x_label: &str, y_label: &str) -> String {
        let (right, base) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut svg = format!(
            "<path class=\"frame\" d=\"M{LEFT} {TOP}V{base}H{right}\"/>\
             <text x=\"{right}\" y=\"{:.0}\" text-anchor=\"end\">{}</text><text x=\"{LEFT}\" y=\"9\">{}</text>",
            HEIGHT - 4.0,
            escaped(x_label),
            escaped(y_label)
        );
        for step in 0..=4 {
            let share = f64::from(step) / 4.0;
            let x = self.x.0 + share * (self.x.1 - self.x.0);
            let y = self.y.0 + share * (self.y.1 - self.y.0);
            let ((px, _), (_, py)) = (self.place(x, self.y.0), self.place(self.x.0, y));
            let _ = write!(
                svg,
                "<text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                base + 15.0,
                short(x),
                LEFT - 6.0,
                py + 4.0,
                short(y)
            );
        }
        svg
    }
}

fn short(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Named points.
pub fn scatter(points: &[(String, f64, f64)], x_label: &str, y_label: &str) -> String {
    let scale = Scale::new(points.iter().map(|(_, x, y)| (*x, *y)));
    let mut svg = open(&format!("{y_label} by {x_label}"), WIDTH, HEIGHT) + &scale.axes(x_label, y_label);
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for (name, x, y) in points {
        let (px, py) = scale.place(*x, *y);
        // A name that would cover another one goes above it.
        let mut at = py + 4.0;
        while taken.iter().any(|(tx, ty)| (tx - px).abs() < 120.0 && (ty - at).abs() < 13.0) {
            at -= 13.0;
        }
        taken.push((px, at));
        let (anchor, tx) = if px > WIDTH * 0.8 { ("end", px - 8.0) } else { ("start", px + 8.0) };
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{px:.1} {py:.1}L{tx:.1} {:.1}\"/>\
             <circle class=\"mark\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"4.5\"/>\
             <text class=\"name\" x=\"{tx:.1}\" y=\"{at:.1}\" text-anchor=\"{anchor}\">{}</text>",
            at - 4.0,
            escaped(name)
        );
    }
    svg + "</svg>"
}

/// A bar per value, the first one at `first` on the axis.
pub fn bars(values: &[f64], first: f64, label: &str) -> String {
    let most = values.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let (base, room) = (SMALL_HEIGHT - BOTTOM, SMALL_HEIGHT - BOTTOM - TOP);
    let step = (SMALL_WIDTH - LEFT - RIGHT) / values.len().max(1) as f64;
    let mut svg = open(label, SMALL_WIDTH, SMALL_HEIGHT);
    for (at, value) in values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
        let height = (value / most * room).max(0.5);
        let _ = write!(
            svg,
            "<rect class=\"mark\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
            LEFT + at as f64 * step,
            base - height,
            (step - 1.0).max(0.5)
        );
    }
    let _ = write!(
        svg,
        "<path class=\"axis\" d=\"M{LEFT} {base}H{:.0}\"/><text x=\"{LEFT}\" y=\"{:.0}\">{first:.0}</text>\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{:.0} {}</text>\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{:.1} %</text></svg>",
        SMALL_WIDTH - RIGHT,
        base + 15.0,
        SMALL_WIDTH - RIGHT,
        base + 15.0,
        first + values.len() as f64 - 1.0,
        escaped(label),
        LEFT - 6.0,
        TOP + 8.0,
        most * 100.0
    );
    svg
}

/// Named lines over the same axes, distinguished by colour and dashes.
pub fn lines(series: &[(String, Vec<(f64, f64)>)], x_label: &str, y_label: &str) -> String {
    let points = series.iter().flat_map(|(_, points)| points.iter().copied());
    let scale = Scale::new(points);
    let mut svg = open(&format!("{y_label} over {x_label}"), WIDTH, HEIGHT) + &scale.axes(x_label, y_label);
    for (number, (name, points)) in series.iter().enumerate() {
        let mut path = String::new();
        for (at, (x, y)) in points.iter().enumerate() {
            let (x, y) = scale.place(*x, *y);
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { "M" } else { "L" });
        }
        let dash = ["", "6 3", "2 3", "9 3 2 3", "1 4", "12 4", "4 2 1 2"][number % 7];
        let colour = number % 7;
        let _ = write!(
            svg,
            "<path class=\"path c{colour}\" stroke-dasharray=\"{dash}\" d=\"{path}\"/>\
             <path class=\"path c{colour}\" stroke-dasharray=\"{dash}\" d=\"M{:.0} {:.0}h28\"/>\
             <text class=\"name\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            LEFT + 10.0,
            TOP + 10.0 + 14.0 * number as f64,
            LEFT + 44.0,
            TOP + 14.0 + 14.0 * number as f64,
            escaped(name)
        );
    }
    svg + "</svg>"
}

/// A bar per name, the part of it that matters more drawn darker.
pub fn bars_named(rows: &[(String, f64, f64)], label: &str) -> String {
    const ROW: f64 = 24.0;
    const NAMES: f64 = 140.0;
    let height = TOP + ROW * rows.len() as f64 + 22.0;
    let most = rows.iter().map(|(_, all, _)| *all).fold(f64::MIN_POSITIVE, f64::max);
    let long = |value: f64| value / most * (WIDTH - NAMES - 70.0);
    let mut svg = open(label, WIDTH, height);
    for (at, (name, all, part)) in rows.iter().enumerate() {
        let y = TOP + ROW * at as f64;
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"part\" x=\"{NAMES}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
             <rect class=\"mark\" x=\"{NAMES}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            NAMES - 8.0,
            y + 13.0,
            escaped(name),
            long(*all),
            ROW - 7.0,
            long(*part),
            ROW - 7.0,
            NAMES + long(*all) + 6.0,
            y + 13.0,
            short(*all)
        );
    }
    let _ = write!(svg, "<text x=\"{NAMES}\" y=\"{:.0}\">{}</text></svg>", height - 6.0, escaped(label));
    svg
}
