//! A drawing as SVG, in text and few shapes.

use std::fmt::Write as _;

/// Of what stands beside what is shown.
pub const GREY: &str = "#6b7280";
pub const LIGHT: &str = "#e5e7eb";
pub const BLACK: &str = "#111827";

/// Where a text begins.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Svg {
        Svg {
            width,
            height,
            body: String::new(),
        }
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, colour: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{colour}">{text}</text>"#
        ));
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        self.polyline(&[from, to], colour, width);
    }

    pub fn polyline(&mut self, points: &[(f64, f64)], colour: &str, width: f64) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let points = points.join(" ");
        self.add(&format!(
            r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#
        ));
    }

    /// `filled`, or only its edge.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, colour: &str, filled: bool) {
        let fill = if filled { colour } else { "white" };
        self.add(&format!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{fill}" stroke="{colour}"/>"#
        ));
    }

    fn add(&mut self, element: &str) {
        // A String takes all.
        let _ = writeln!(self.body, "{element}");
    }

    /// On white, so that it can be read on every page.
    pub fn finished(self) -> String {
        let Svg {
            width,
            height,
            body,
        } = self;
        let font = r#"font-family="Helvetica, Arial, sans-serif" font-size="12""#;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" {font}>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
        )
    }
}

/// An axis whose steps are powers of ten.
pub struct Log {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Log {
    /// For these values, from one place to the other. `None`: there is nothing to show.
    pub fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Log> {
        let values: Vec<f64> = values
            .filter(|value| *value > 0.0)
            .map(f64::log10)
            .collect();
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        // Never a single point.
        let room = ((most - least) * 0.05).max(0.1);
        Some(Log {
            least: least - room,
            most: most + room,
            from,
            to,
        })
    }

    pub fn place(&self, value: f64) -> f64 {
        // What is none is at the end.
        let at = if value > 0.0 {
            value.log10().clamp(self.least, self.most)
        } else {
            self.least
        };
        self.from + (at - self.least) / (self.most - self.least) * (self.to - self.from)
    }

    /// The powers of ten; and twice and five times them, where there are few.
    pub fn steps(&self) -> Vec<f64> {
        let decades = self.least.floor() as i32..=self.most.ceil() as i32;
        let parts: &[f64] = if self.most - self.least > 3.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let steps =
            decades.flat_map(|decade| parts.iter().map(move |part| part * 10_f64.powi(decade)));
        steps
            .filter(|step| (self.least..=self.most).contains(&step.log10()))
            .collect()
    }
}
