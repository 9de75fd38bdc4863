//! Charts as SVG text with stable bytes: the same numbers give the same file. No script, no font, no network; colours are
//! classes that the page styles for light and dark.

use std::fmt::Write as _;

use super::escape::html;

/// Width of every chart in its own units; the page scales it. Small, so that text stays legible on a phone.
pub const WIDTH: f64 = 480.0;
/// Height of every chart.
pub const HEIGHT: f64 = 230.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 34.0;

/// How values become positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By their logarithm; values of 0 or less sit at the lower end.
    Log,
}

/// One direction of a chart. Invariant: `low < high`, both finite, and `low > 0` on a log scale.
#[derive(Clone, Debug)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
    title: String,
}

impl Axis {
    /// From 0 to at least `high`, with round ticks.
    pub fn from_zero(high: f64, title: &str, label: fn(f64) -> String) -> Self {
        let high = if high.is_finite() && high > 0.0 { high } else { 1.0 };
        let step = round_step(high / 4.0);
        let count = (high / step).ceil().max(1.0) as u32;
        let ticks = (0..=count).map(|i| f64::from(i) * step).map(|v| (v, label(v))).collect();
        Self { scale: Scale::Linear, low: 0.0, high: f64::from(count) * step, ticks, title: title.to_owned() }
    }

    /// From 0 to exactly `high`: time, which ends when the run ends.
    pub fn time(high: f64, title: &str, label: fn(f64) -> String) -> Self {
        let mut axis = Self::from_zero(high, title, label);
        axis.high = if high.is_finite() && high > 0.0 { high } else { 1.0 };
        let most = axis.high * (1.0 + 1e-9);
        axis.ticks.retain(|(v, _)| *v <= most);
        axis
    }

    /// Over the decades between two positive values.
    pub fn log(low: f64, high: f64, title: &str, label: fn(f64) -> String) -> Self {
        let low = if low.is_finite() && low > 0.0 { low } else { 1.0 };
        let high = if high.is_finite() && high > low * 1.01 { high } else { low * 2.0 };
        let steps: &[f64] = if high / low > 2e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let mut ticks: Vec<(f64, String)> = (first..=last)
            .flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)))
            .filter(|v| (low * 0.999..=high * 1.001).contains(v))
            .map(|v| (v, label(v)))
            .collect();
        // More than these touch each other.
        while ticks.len() > 8 {
            let mut keep = false;
            ticks.retain(|_| {
                keep = !keep;
                keep
            });
        }
        Self { scale: Scale::Log, low, high, ticks, title: title.to_owned() }
    }

    /// Between two values, with the ticks given.
    pub fn with_ticks(low: f64, high: f64, title: &str, ticks: Vec<(f64, String)>) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { scale: Scale::Linear, low, high, ticks, title: title.to_owned() }
    }

    /// 0 at the lower end, 1 at the upper one; values outside are held to the ends.
    fn share(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Log => 0.0,
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= step * 0.999).unwrap_or(10.0 * power)
}

/// A chart that is being drawn.
#[derive(Clone, Debug)]
pub struct Chart {
    x: Axis,
    y: Axis,
    marks: String,
    legend: Vec<(String, String)>,
    /// Where the marked places on the x axis are, so that their names do not lie on each other.
    marked: Vec<f64>,
}

impl Chart {
    /// An empty chart.
    pub fn new(x: Axis, y: Axis) -> Self {
        Self { x, y, marks: String::new(), legend: Vec::new(), marked: Vec::new() }
    }

    fn px(&self, x: f64) -> f64 {
        LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.share(y) * (HEIGHT - TOP - BOTTOM)
    }

    /// A line through points; `class` names its colour, `name` stands in the legend.
    pub fn line(&mut self, class: &str, name: &str, points: &[(f64, f64)]) {
        let mut path = String::new();
        for (i, &(x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { "M" } else { "L" }, self.px(x), self.py(y));
        }
        self.path(class, name, &path);
    }

    /// A line of steps: each value holds from its own begin to its own end.
    pub fn steps(&mut self, class: &str, name: &str, steps: &[(f64, f64, f64)]) {
        let mut path = String::new();
        for (i, &(from, to, y)) in steps.iter().enumerate() {
            let (a, b, y) = (self.px(from), self.px(to), self.py(y));
            let _ = write!(path, "{}{a:.1} {y:.1}H{b:.1}", if i == 0 { "M" } else { "L" });
        }
        self.path(class, name, &path);
    }

    fn path(&mut self, class: &str, name: &str, path: &str) {
        if !path.is_empty() {
            let _ =
                write!(self.marks, "<path class=\"line {class}\" d=\"{path}\"><title>{}</title></path>", html(name));
            self.legend.push((class.to_owned(), name.to_owned()));
        }
    }

    /// A dashed level across the chart.
    pub fn level(&mut self, class: &str, name: &str, y: f64) {
        let (a, b) = (LEFT, WIDTH - RIGHT);
        let _ = write!(self.marks, "<path class=\"line dash {class}\" d=\"M{a:.1} {y:.1}H{b:.1}\"/>", y = self.py(y));
        self.legend.push((format!("dash {class}"), name.to_owned()));
    }

    /// A box between two corners, filled; `strength` from 0 to 1 is its opacity, `title` its tooltip.
    pub fn cell(&mut self, class: &str, x: (f64, f64), y: (f64, f64), strength: f64, title: &str) {
        let (x0, x1, y0, y1) = (self.px(x.0), self.px(x.1), self.py(y.1), self.py(y.0));
        let (w, h) = ((x1 - x0).max(0.5), (y1 - y0).max(0.5));
        let _ = write!(
            self.marks,
            "<rect class=\"{class}\" x=\"{x0:.1}\" y=\"{y0:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" \
             fill-opacity=\"{:.2}\"><title>{}</title></rect>",
            strength.clamp(0.0, 1.0),
            html(title)
        );
    }

    /// A bar that stands on the lower end, a gap narrower than its place.
    pub fn bar(&mut self, class: &str, x: (f64, f64), y: f64, title: &str) {
        let (x0, x1, top) = (self.px(x.0) + 0.5, self.px(x.1) - 0.5, self.py(y));
        let (w, h) = ((x1 - x0).max(0.8), HEIGHT - BOTTOM - top);
        let _ = write!(
            self.marks,
            "<rect class=\"{class}\" x=\"{x0:.1}\" y=\"{top:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"1\">\
             <title>{}</title></rect>",
            html(title)
        );
    }

    /// A marked place on the x axis: a thin line with its name on top.
    pub fn mark_x(&mut self, x: f64, name: &str) {
        /// What a name like `p99.9` needs.
        const NAME: f64 = 40.0;
        let at = self.px(x);
        let line = self.marked.iter().filter(|&&other| (other - at).abs() < NAME).count();
        self.marked.push(at);
        let anchor = if at > WIDTH * 0.75 { "end" } else { "start" };
        let dx = if anchor == "end" { -3.0 } else { 3.0 };
        let _ = write!(
            self.marks,
            "<path class=\"mark\" d=\"M{at:.1} {TOP:.1}V{:.1}\"/><text class=\"note\" x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"{anchor}\">{}</text>",
            HEIGHT - BOTTOM,
            at + dx,
            TOP + 9.0 + 12.0 * line as f64,
            html(name)
        );
    }

    /// The chart as an `svg` element, and its legend as HTML when it has more than one line.
    pub fn finish(self, name: &str) -> String {
        let mut out = String::with_capacity(self.marks.len() + 4096);
        if self.legend.len() > 1 {
            out.push_str("<p class=\"legend\">");
            for (class, name) in &self.legend {
                let _ = write!(out, "<span><i class=\"{class}\"></i>{}</span>", html(name));
            }
            out.push_str("</p>");
        }
        let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", html(name));
        self.grid(&mut out);
        out.push_str(&self.marks);
        out.push_str("</svg>");
        out
    }

    fn grid(&self, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, label) in &self.y.ticks {
            let y = self.py(*value);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT:.1} {y:.1}H{right:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                LEFT - 5.0,
                y + 3.5,
                html(label)
            );
        }
        for (value, label) in &self.x.ticks {
            let x = self.px(*value);
            let _ = write!(
                out,
                "<path class=\"tick\" d=\"M{x:.1} {bottom:.1}v3\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{}</text>",
                bottom + 14.0,
                html(label)
            );
        }
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{LEFT:.1} {bottom:.1}H{right:.1}\"/><text class=\"title\" x=\"{right:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\">{}</text><text class=\"title\" x=\"2\" y=\"10\">{}</text>",
            HEIGHT - 4.0,
            html(&self.x.title),
            html(&self.y.title)
        );
    }
}

/// A count on an axis: `500`, `1.5k`, `2M`.
pub fn count_label(v: f64) -> String {
    let (v, unit) = match v.abs() {
        s if s >= 1e9 => (v / 1e9, "G"),
        s if s >= 1e6 => (v / 1e6, "M"),
        s if s >= 1e3 => (v / 1e3, "k"),
        _ => (v, ""),
    };
    format!("{}{unit}", plain(v))
}

/// A time in nanoseconds on an axis: `200 us`, `5 ms`, `1 s`.
pub fn time_label(ns: f64) -> String {
    let (v, unit) = match ns.abs() {
        0.0 => return "0".to_owned(),
        s if s >= 0.9999e9 => (ns / 1e9, "s"),
        s if s >= 0.9999e6 => (ns / 1e6, "ms"),
        s if s >= 0.9999e3 => (ns / 1e3, "us"),
        _ => (ns, "ns"),
    };
    format!("{} {unit}", plain(v))
}

/// Seconds on an axis.
pub fn seconds_label(s: f64) -> String {
    plain(s)
}

/// At most three digits behind the point, no zeros at their end.
fn plain(v: f64) -> String {
    let text = format!("{v:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks_inside_their_ends() {
        let axis = Axis::from_zero(930.0, "", count_label);
        assert_eq!(axis.ticks.iter().map(|t| t.1.as_str()).collect::<Vec<_>>(), ["0", "500", "1k"]);
        let axis = Axis::time(7.3, "s", seconds_label);
        assert_eq!((axis.high, axis.ticks.last().unwrap().0), (7.3, 6.0));
        let axis = Axis::log(2e5, 3e8, "", time_label);
        assert_eq!(axis.ticks.first().unwrap().1, "200 us");
        assert!(axis.ticks.len() <= 8 && axis.ticks.last().unwrap().0 <= 3e8);
    }

    #[test]
    fn no_value_leaves_the_chart_or_is_no_number() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300, 5.0];
        for axis in
            [Axis::from_zero(f64::NAN, "", plain), Axis::log(0.0, f64::NAN, "", plain), Axis::time(0.0, "", plain)]
        {
            for v in odd {
                assert!((0.0..=1.0).contains(&axis.share(v)), "{axis:?} {v}");
            }
        }
        let mut chart = Chart::new(Axis::from_zero(10.0, "x", plain), Axis::log(1.0, 10.0, "y", plain));
        chart.line("a", "l", &odd.map(|v| (v, v)));
        chart.bar("a", (1.0, f64::NAN), f64::INFINITY, "<t>");
        let svg = chart.finish("c");
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<t>"), "{svg}");
    }

    #[test]
    fn bytes_are_stable() {
        let draw = || {
            let mut chart = Chart::new(Axis::time(2.0, "s", seconds_label), Axis::from_zero(3.0, "n", count_label));
            chart.steps("s1", "issued", &[(0.0, 1.0, 3.0), (1.0, 2.0, 1.0)]);
            chart.level("s2", "asked", 2.0);
            chart.finish("rate")
        };
        assert_eq!(draw(), draw());
        assert!(draw().contains("M52.0 22.0H259.0L259.0 138.0H466.0"), "{}", draw());
    }

    #[test]
    fn names_of_places_side_by_side_stand_under_each_other() {
        let mut chart = Chart::new(Axis::from_zero(100.0, "x", plain), Axis::from_zero(1.0, "y", plain));
        chart.mark_x(50.0, "p50");
        chart.mark_x(52.0, "p99");
        chart.mark_x(90.0, "max");
        let svg = chart.finish("c");
        let height = |name: &str| {
            let before = &svg[..svg.find(&format!(">{name}<")).unwrap()];
            let at = before.rfind("y=\"").unwrap() + 3;
            before[at..].split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert_eq!((height("p99") - height("p50"), height("max") - height("p50")), (12.0, 0.0));
    }

    #[test]
    fn labels_are_short() {
        assert_eq!((count_label(1500.0), count_label(2e6)), ("1.5k".into(), "2M".into()));
        assert_eq!((time_label(2e5), time_label(1e9), time_label(5e6)), ("200 us".into(), "1 s".into(), "5 ms".into()));
    }
}
