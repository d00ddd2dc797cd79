//! A violation as a page: who asked for what, held it and said to be valid until when, and which
//! faults there were.

use std::{collections::BTreeMap, fmt::Write};

use crate::{
    event::{Event, What},
    report::Violation,
};

/// The time that is shown before the first event of a violation and after its last, in nanoseconds.
const AROUND: u64 = 2_000_000_000;
/// Pixels: of the names of the rows, of the time, of a row.
const NAMES: f64 = 330.0;
const WIDTH: f64 = 1000.0;
const ROW: f64 = 22.0;

/// One acquisition, as it is drawn.
struct Row {
    name: String,
    p: u64,
    invoked: u64,
    granted: Option<u64>,
    ended: Option<u64>,
    /// Its release was called, and confirmed.
    released: Option<u64>,
    valid: u64,
    /// Instants with a colour and what they are.
    marks: Vec<(u64, &'static str, String)>,
}

/// Something that lasted: a fault, or a stall of a process.
struct Span {
    text: String,
    from: u64,
    to: u64,
}

/// An HTML page that shows a violation of a history among the events around it.
///
/// The events come in the order of time, as the checker reads them: all of the history, or a part
/// that has those around the violation.
pub fn timeline(violation: &Violation, events: impl Iterator<Item = Event>) -> String {
    let times = || violation.events.iter().map(|event| event.t);
    let from = times().min().unwrap_or_default().saturating_sub(AROUND);
    let to = times()
        .max()
        .map_or(u64::MAX, |last| last.saturating_add(AROUND));
    let mut rows = BTreeMap::new();
    let mut spans = BTreeMap::new();
    for event in events.take_while(|event| event.t <= to) {
        note(&mut rows, &mut spans, &violation.lock, &event);
    }
    let shown = |row: &Row| {
        row.ended
            .unwrap_or(to)
            .max(row.released.unwrap_or_default())
            >= from
    };
    let mut rows: Vec<(u64, Row)> = rows.into_iter().filter(|(_, row)| shown(row)).collect();
    rows.sort_by_key(|(_, row)| row.invoked);
    let spans: Vec<Span> = spans.into_values().filter(|span| span.to >= from).collect();
    let end = rows
        .iter()
        .map(|(_, row)| row.ended.or(row.granted).unwrap_or(row.invoked))
        .max();
    let end = if to == u64::MAX {
        end.unwrap_or(from)
    } else {
        to
    };
    page(
        violation,
        &rows,
        &spans,
        &Scale {
            from,
            to: end.max(from + 1),
        },
    )
}

fn note(
    rows: &mut BTreeMap<u64, Row>,
    spans: &mut BTreeMap<(bool, u64), Span>,
    lock: &str,
    event: &Event,
) {
    let t = event.t;
    let p = event.p;
    match &event.what {
        What::Invoke {
            op,
            lock: of,
            mode,
            policy,
            ..
        } if of == lock => {
            let name = format!("client {p}, {op}: {mode:?} {policy:?}");
            let row = Row {
                name,
                p,
                invoked: t,
                granted: None,
                ended: None,
                released: None,
                valid: 0,
                marks: Vec::new(),
            };
            rows.insert(*op, row);
        }
        What::Fault {
            id, kind, lock: of, ..
        } if of.as_ref().is_none_or(|of| of == lock) => {
            spans.insert(
                (true, *id),
                Span {
                    text: kind.clone(),
                    from: t,
                    to: u64::MAX,
                },
            );
        }
        What::Healed { id } => {
            spans.entry((true, *id)).and_modify(|span| span.to = t);
        }
        What::Stall { ns, aside } if *ns > 50_000_000 => {
            let text = format!(
                "client {p} stood still{}",
                if *aside {
                    ", also beside its runtime"
                } else {
                    ""
                }
            );
            spans.insert(
                (false, t),
                Span {
                    text,
                    from: t.saturating_sub(*ns),
                    to: t,
                },
            );
        }
        What::Killed { target } => {
            for row in rows
                .values_mut()
                .filter(|row| row.p == *target && row.ended.is_none())
            {
                row.end(t, "killed");
            }
        }
        what => {
            if let Some(row) = number(what).and_then(|op| rows.get_mut(&op)) {
                row.note(t, what);
            }
        }
    }
}

/// The acquisition that an event is about.
fn number(what: &What) -> Option<u64> {
    match what {
        What::Once { op, .. } | What::Done { op, .. } => Some(*op),
        What::Queued { op } | What::Ok { op, .. } | What::Fail { op, .. } | What::Info { op } => {
            Some(*op)
        }
        What::Use { op, .. }
        | What::Downgrade { op }
        | What::Release { op, .. }
        | What::Released { op } => Some(*op),
        What::Unreleased { op } | What::Lost { op, .. } => Some(*op),
        What::Accept { op, .. } | What::Reject { op, .. } => Some(*op),
        _ => None,
    }
}

impl Row {
    fn note(&mut self, t: u64, what: &What) {
        let mut mark = |colour, text: String| self.marks.push((t, colour, text));
        match what {
            What::Once { fire, .. } => mark("#888", format!("work of fire {fire}, done once")),
            What::Done { fire, .. } => mark("#06c", format!("told that fire {fire} is done")),
            What::Queued { .. } => mark("#888", "seen in the queue".into()),
            What::Ok { valid, tok, .. } => {
                mark("#060", format!("granted with token {tok}"));
                (self.granted, self.valid) = (Some(t), *valid);
            }
            What::Use { valid, .. } => {
                mark("#4a4", "says that it is valid".into());
                self.valid = self.valid.max(*valid);
            }
            What::Downgrade { .. } => mark("#06c", "downgraded".into()),
            What::Fail { .. } => self.end(t, "refused"),
            What::Info { .. } => self.end(t, "unknown"),
            What::Release { .. } => self.end(t, "released"),
            What::Lost { why, .. } => self.end(t, &format!("lost: {why}")),
            What::Released { .. } | What::Unreleased { .. } => self.released = Some(t),
            What::Accept { .. } => mark("#000", "a write was accepted".into()),
            What::Reject { .. } => mark("#c00", "a write was refused".into()),
            _ => {}
        }
    }

    fn end(&mut self, t: u64, why: &str) {
        self.marks.push((t, "#c60", why.to_owned()));
        self.ended.get_or_insert(t);
    }
}

struct Scale {
    from: u64,
    to: u64,
}

impl Scale {
    fn x(&self, t: u64) -> f64 {
        let inside = t.clamp(self.from, self.to) - self.from;
        NAMES + WIDTH * inside as f64 / (self.to - self.from) as f64
    }

    fn bar(&self, from: u64, to: u64, y: f64, height: f64, colour: &str, title: &str) -> String {
        let x = self.x(from);
        let width = (self.x(to) - self.x(from)).max(1.0);
        let title = escape(title);
        format!(
            "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height}' fill='{colour}'><title>{title}</title></rect>\n"
        )
    }
}

fn page(violation: &Violation, rows: &[(u64, Row)], spans: &[Span], scale: &Scale) -> String {
    let concerned: Vec<u64> = violation
        .events
        .iter()
        .filter_map(|event| match &event.what {
            What::Invoke { op, .. } => Some(*op),
            what => number(what),
        })
        .collect();
    let height = ROW * (rows.len() + spans.len() + 2) as f64;
    let mut svg = String::new();
    let mut y = ROW;
    for span in spans {
        svg += &text(y, &span.text, false);
        svg += &scale.bar(span.from, span.to, y + 4.0, ROW - 8.0, "#e88", &span.text);
        y += ROW;
    }
    for (op, row) in rows {
        svg += &text(y, &row.name, concerned.contains(op));
        let ended = row.ended.unwrap_or(scale.to);
        svg += &scale.bar(
            row.invoked,
            row.granted.unwrap_or(ended),
            y + 9.0,
            4.0,
            "#bbb",
            "waits",
        );
        if let Some(granted) = row.granted {
            svg += &scale.bar(
                granted,
                row.valid.min(scale.to),
                y + 3.0,
                ROW - 6.0,
                "#cec",
                "validity as it was known",
            );
            svg += &scale.bar(granted, ended, y + 5.0, ROW - 10.0, "#5b5", "holds");
        }
        if let (Some(ended), Some(released)) = (row.ended, row.released) {
            svg += &scale.bar(
                ended,
                released,
                y + 9.0,
                4.0,
                "#69c",
                "its release is under way",
            );
        }
        for (t, colour, what) in row.marks.iter().filter(|(t, ..)| *t >= scale.from) {
            let ms = t.saturating_sub(scale.from) as f64 / 1e6;
            svg += &scale.bar(
                *t,
                *t,
                y + 2.0,
                ROW - 4.0,
                colour,
                &format!("{what}, at {ms:.1} ms"),
            );
        }
        y += ROW;
    }
    let mut ticks = String::new();
    for tick in 0..=10 {
        let t = scale.from + (scale.to - scale.from) / 10 * tick;
        let x = scale.x(t);
        let ms = (t - scale.from) / 1_000_000;
        // A string takes everything.
        let _ = writeln!(
            ticks,
            "<line x1='{x:.1}' x2='{x:.1}' y1='16' y2='{height}' stroke='#ddd'/><text x='{x:.1}' y='12'>{ms} ms</text>"
        );
    }
    let title = escape(&violation.invariant().to_string());
    let full = escape(&violation.to_string());
    let width = NAMES + WIDTH + 60.0;
    format!(
        "<!doctype html><meta charset='utf-8'><title>{title}</title>\n\
         <style>body {{ font: 13px sans-serif }} text {{ font: 12px sans-serif }} pre {{ white-space: pre-wrap }}</style>\n\
         <h1>{title}</h1>\n<pre>{full}</pre>\n\
         <p>Grey: waits. Green: holds; light green: valid as far as it said. Blue: its release is under way. Red: faults. \
         Ticks say what they are under the pointer. The acquisitions of the violation are bold.</p>\n\
         <svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'>\n{ticks}{svg}</svg>\n"
    )
}

fn text(y: f64, text: &str, bold: bool) -> String {
    let weight = if bold { " font-weight='bold'" } else { "" };
    format!(
        "<text x='4' y='{:.1}'{weight}>{}</text>\n",
        y + 15.0,
        escape(text)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}
