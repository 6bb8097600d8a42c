//! The report as one HTML page without scripts, with the tables of the terminal.

use plan::status::StatusReport;

use super::tables;

const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}\
                     pre{overflow-x:auto;font:13px/1.4 ui-monospace,monospace}\
                     @media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}";

pub(super) fn page(report: &StatusReport) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Zoneward status</title>\
         <style>{STYLE}</style></head><body>\n<h1>Zoneward status</h1>\n<pre>{}</pre>\n</body></html>\n",
        escaped(&tables::text(report, true))
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
