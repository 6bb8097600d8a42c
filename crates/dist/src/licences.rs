//! Licences of everything that is compiled in, as one text: each distinct text once, with the libraries that it is for.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Context;

use crate::dependencies::{BillOfMaterials, LinkedLibrary};

const RULE: &str = "================================================================================";

/// The whole document. Libraries without a text in their package are listed with their SPDX expression.
pub fn render(bill: &BillOfMaterials) -> anyhow::Result<String> {
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for library in &bill.libraries {
        for file in &library.licence_files {
            let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            let file_name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let holder = format!("{} ({file_name})", label(library));
            holders.entry(normalised(&bytes)).or_default().push(holder);
        }
    }
    let mut text = format!(
        "Licences of the libraries that are part of zoneward {}\n\n\
         Zoneward itself is under the Apache License 2.0: see LICENSE. The texts below come from the packages of the\n\
         libraries; {} of {} have none in their package.\n\n",
        bill.version,
        bill.libraries.iter().filter(|library| library.licence_files.is_empty()).count(),
        bill.libraries.len(),
    );
    for library in &bill.libraries {
        let note = if library.licence_files.is_empty() { "  (no text in the package)" } else { "" };
        let expression = library.licence.as_deref().unwrap_or("no licence stated");
        writeln!(text, "{:<44} {expression}{note}", label(library))?;
    }
    let mut texts: Vec<(&Vec<String>, &String)> = holders.iter().map(|(text, of)| (of, text)).collect();
    texts.sort();
    for (of, licence) in texts {
        write!(text, "\n{RULE}\n{}\n{RULE}\n\n{licence}\n", of.join("\n"))?;
    }
    Ok(text)
}

fn label(library: &LinkedLibrary) -> String {
    format!("{} {}", library.name, library.version)
}

/// The same text from different editors is one text: line ends and white space at the end of lines do not count.
fn normalised(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_make_no_second_text() {
        assert_eq!(normalised(b"MIT  \r\n\r\nPermission\r\n\r\n"), normalised(b"\nMIT\n\nPermission"));
    }
}
