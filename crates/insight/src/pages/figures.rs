//! Head figures: a value with its name and a remark.

use output::html::escaped;

/// One figure.
pub(crate) struct HeadFigure {
    name: &'static str,
    value: String,
    /// HTML.
    remark: String,
    needs_attention: bool,
}

impl HeadFigure {
    pub(super) fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), remark: String::new(), needs_attention: false }
    }

    pub(super) fn remark(self, text: &str) -> Self {
        Self { remark: escaped(text), ..self }
    }

    pub(super) fn remark_html(self, remark: String) -> Self {
        Self { remark, ..self }
    }

    pub(super) fn attention(self, needs_attention: bool) -> Self {
        Self { needs_attention, ..self }
    }
}

pub(crate) fn figure_list(figures: &[HeadFigure]) -> String {
    let one = |figure: &HeadFigure| {
        let class = if figure.needs_attention { " class=\"attention\"" } else { "" };
        let remark = match figure.remark.is_empty() {
            true => String::new(),
            false => format!("<dd class=\"faint\">{}</dd>", figure.remark),
        };
        format!(
            "<div{class}><dt>{}</dt><dd class=\"value\">{}</dd>{remark}</div>\n",
            figure.name,
            escaped(&figure.value)
        )
    };
    format!("<dl class=\"heads\">\n{}</dl>\n", figures.iter().map(one).collect::<String>())
}
