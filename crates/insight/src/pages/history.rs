//! Traffic over time: an SVG plot, which the script replaces by one that can be read off.

use crate::ledger::TrafficMinute;
use output::html::{escaped, lines};
use serde_json::json;

use crate::pages::units::count;

/// Points of a plot; longer histories are summed.
const MAX_POINTS: usize = 288;
const MINUTE: u64 = 60;

/// Bytes per second in zone and across zones, from equal spans of time.
struct HistorySeries {
    /// Seconds since the start of the ledger.
    starts: Vec<u64>,
    in_zone: Vec<f64>,
    across: Vec<f64>,
    step: u64,
}

fn series(history: &[TrafficMinute]) -> HistorySeries {
    let first = history.first().map_or(0, |minute| minute.start_seconds / MINUTE);
    let last = history.last().map_or(0, |minute| minute.start_seconds / MINUTE);
    let minutes = (last - first + 1).max(2) as usize;
    let per_point = minutes.div_ceil(MAX_POINTS);
    let points = minutes.div_ceil(per_point);
    let (mut in_zone, mut across) = (vec![0.0; points], vec![0.0; points]);
    let step = per_point as u64 * MINUTE;
    for minute in history {
        let at = (minute.start_seconds / MINUTE - first) as usize / per_point;
        for pair in &minute.zone_pairs {
            let sums = if pair.from_zone == pair.to_zone { &mut in_zone } else { &mut across };
            sums[at] += pair.bytes as f64 / step as f64;
        }
    }
    let starts = (0..points as u64).map(|at| first * MINUTE + at * step).collect();
    HistorySeries { starts, in_zone, across, step }
}

/// The plot. `since` is the start of the ledger, as RFC 3339.
pub(crate) fn history_plot(history: &[TrafficMinute], since: Option<&str>) -> String {
    let since: Option<jiff::Timestamp> = since.and_then(|text| text.parse().ok());
    let Some(since) = since.filter(|_| history.len() > 1) else {
        return "<p class=\"faint\">Traffic over time appears here after two minutes with traffic.</p>\n"
            .to_owned();
    };
    let series = series(history);
    let whole = |values: &[f64]| values.iter().map(|value| value.round() as u64).collect::<Vec<_>>();
    let x: Vec<i64> =
        series.starts.iter().map(|start| since.as_second() + i64::try_from(*start).unwrap_or(0)).collect();
    let data = json!({"x": x, "series": [
        {"label": "in zone", "values": whole(&series.in_zone)},
        {"label": "across zones", "values": whole(&series.across)},
    ]});
    let newest = series.starts.last().copied().unwrap_or(0);
    let points = |values: &[f64]| -> Vec<(f64, f64)> {
        let hours = |start: &u64| (*start as f64 - newest as f64) / 3_600.0;
        series.starts.iter().zip(values).map(|(start, value)| (hours(start), value / 1e6)).collect()
    };
    let named = [
        ("in zone".to_owned(), points(&series.in_zone)),
        ("across zones".to_owned(), points(&series.across)),
    ];
    let every = match series.step / MINUTE {
        1 => "a minute".to_owned(),
        minutes => count(minutes as usize, "minute"),
    };
    format!(
        "<figure class=\"plot\" data-series=\"{}\">{}<figcaption>Bytes per second; one point is {every}. A new leader starts \
         a new history.</figcaption></figure>\n",
        escaped(&data.to_string()),
        lines(&named, "hours before now", "MB/s")
    )
}

#[cfg(test)]
mod tests {
    use crate::ledger::ZonePairTraffic;

    use super::*;

    fn minute(number: u64, same: u64, across: u64) -> TrafficMinute {
        let pair = |to: &str, bytes| ZonePairTraffic {
            from_zone: "a".to_owned(),
            to_zone: to.to_owned(),
            connections: 1,
            bytes,
        };
        TrafficMinute { start_seconds: number * 60, zone_pairs: vec![pair("a", same), pair("b", across)] }
    }

    #[test]
    fn a_day_is_at_most_288_points_and_no_byte_is_lost() {
        let history: Vec<TrafficMinute> = (3..1_443).map(|number| minute(number, 600, 60)).collect();
        let series = series(&history);
        assert_eq!((series.starts.len(), series.step, series.starts[0]), (288, 300, 180));
        let sum: f64 = series.across.iter().map(|rate| rate * 300.0).sum();
        assert!((sum - 1_440.0 * 60.0).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn minutes_without_traffic_are_zero_and_one_minute_is_no_plot() {
        let two = [minute(0, 60, 0), minute(3, 0, 120)];
        assert_eq!(series(&two).across, [0.0, 0.0, 0.0, 2.0]);
        assert!(history_plot(&two, Some("2026-11-17T08:00:00Z")).contains("1794902400"));
        for (history, since) in
            [(&two[..1], Some("2026-11-17T08:00:00Z")), (&two[..], None), (&two[..], Some("x"))]
        {
            assert!(!history_plot(history, since).contains("<svg"));
        }
    }
}
