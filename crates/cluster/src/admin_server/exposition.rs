//! Metrics as text. The registry encodes OpenMetrics; for the text format 0.0.4, which many scrapers request, the lines that
//! differ are rewritten.

use http::StatusCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::AdminPage;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics in the format that the client accepts.
pub(super) fn page(registry: &Registry, accept: &str) -> AdminPage {
    let Some(body) = open_metrics(registry) else {
        return AdminPage::text(StatusCode::INTERNAL_SERVER_ERROR, "failed to encode the metrics\n");
    };
    if accept.contains("application/openmetrics-text") {
        AdminPage { content_type: OPEN_METRICS, ..AdminPage::text(StatusCode::OK, body) }
    } else {
        AdminPage { content_type: PLAIN, ..AdminPage::text(StatusCode::OK, plain(&body)) }
    }
}

fn open_metrics(registry: &Registry) -> Option<String> {
    let mut body = String::new();
    encode(&mut body, registry).ok().map(|()| body)
}

/// OpenMetrics -> text format 0.0.4, where the family of a counter has the suffix `_total`, as its samples do.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help: Option<(&str, &str)> = None;
    for line in text.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            out.push_str(without_exemplar(line));
            out.push('\n');
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("HELP"), Some(name), words) => help = Some((name, words.unwrap_or_default())),
            (Some("TYPE"), Some(name), Some(kind)) => {
                let (ending, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    // Only `UnsuffixedCounter` has this type.
                    "unknown" => ("", "counter"),
                    kind => ("", kind),
                };
                if let Some((_, words)) = help.take().filter(|(helped, _)| *helped == name) {
                    out.push_str(&format!("# HELP {name}{ending} {words}\n"));
                }
                out.push_str(&format!("# TYPE {name}{ending} {kind}\n"));
            }
            // The text format has no UNIT and EOF.
            _ => {}
        }
    }
    out
}

/// A sample without its exemplar.
fn without_exemplar(line: &str) -> &str {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '#' if !quoted => return line[..at].trim_end(),
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format_names_counters_as_their_samples() {
        let open = "# HELP syncs Runs.\n# TYPE syncs counter\n# UNIT syncs seconds\n\
                    syncs_total{result=\"a # \\\" b\"} 1 # {trace=\"x\"} 1\n\
                    # HELP build What it is.\n# TYPE build info\nbuild_info{v=\"1\"} 1\n\
                    # HELP held Now.\n# TYPE held gauge\nheld 2\n\
                    # HELP bare Runs.\n# TYPE bare unknown\nbare 3\n# EOF\n";
        let older = "# HELP syncs_total Runs.\n# TYPE syncs_total counter\n\
                     syncs_total{result=\"a # \\\" b\"} 1\n\
                     # HELP build_info What it is.\n# TYPE build_info gauge\nbuild_info{v=\"1\"} 1\n\
                     # HELP held Now.\n# TYPE held gauge\nheld 2\n\
                     # HELP bare Runs.\n# TYPE bare counter\nbare 3\n";
        assert_eq!(plain(open), older);
    }
}
