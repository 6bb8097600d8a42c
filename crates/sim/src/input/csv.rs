//! Inputs as CSV, in the format of the public tool: a header `name,<zone>,...`, then per line a name and
//! `<nodes> <endpoints>` for each zone. A malformed line is reported with line and column, and the others are scored
//! (simulator 1, "Bad input").

use model::Name;

use super::{InputError, LARGEST_COUNT, SimulationInput, Zone};

/// The inputs of a text, in its order. Quoted fields may not span lines.
pub fn parse(text: &str) -> (Vec<SimulationInput>, Vec<InputError>) {
    let (mut inputs, mut errors) = (Vec::new(), Vec::new());
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| !line.is_empty())
        .map(|(text, number)| Line { text, number });
    let header = match lines.next().map(|line| line.fields()) {
        Some(Ok(header)) => header,
        Some(Err(error)) => return (inputs, vec![error]),
        None => {
            return (inputs, vec![error("", (1, 1), "no header: write name,<zone>,... in the first line")]);
        }
    };
    let zones: Vec<Name> = header.iter().skip(1).map(|zone| Name::new(zone.trim())).collect();
    for line in lines {
        match line.input(&zones) {
            Ok(input) => inputs.push(input),
            Err(error) => errors.push(error),
        }
    }
    (inputs, errors)
}

fn error(id: &str, at: (usize, usize), reason: impl Into<String>) -> InputError {
    InputError { id: id.to_owned(), at: Some(at), reason: reason.into() }
}

struct Line<'t> {
    text: &'t str,
    /// From 1.
    number: usize,
}

impl Line<'_> {
    fn fields(&self) -> Result<csv::StringRecord, InputError> {
        // The parser would accept an unclosed quote as the end of the line.
        if self.text.matches('"').count() % 2 == 1 {
            let column = self.text.find('"').map_or(0, |at| self.text[..at].chars().count()) + 1;
            return Err(error("", (self.number, column), "unclosed quote"));
        }
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .buffer_capacity(self.text.len())
            .from_reader(self.text.as_bytes());
        let mut fields = csv::StringRecord::new();
        match reader.read_record(&mut fields) {
            Ok(_) => Ok(fields),
            Err(why) => Err(error("", (self.number, 1), why.to_string())),
        }
    }

    fn input(&self, zones: &[Name]) -> Result<SimulationInput, InputError> {
        let fields = self.fields()?;
        let id = fields.get(0).unwrap_or_default().trim_start();
        if fields.len() != zones.len() + 1 {
            let reason = format!(
                "{} columns, but the header has {}: write one cell \"<nodes> <endpoints>\" per zone",
                fields.len(),
                zones.len() + 1
            );
            return Err(error(id, (self.number, 1), reason));
        }
        let zone = |(cell, (zone, field)): (usize, (&Name, &str))| {
            let (nodes, endpoints) = counts(field)
                .map_err(|(word, reason)| error(id, (self.number, self.column(cell + 1, word)), reason))?;
            Ok(Zone { name: zone.clone(), nodes, endpoints })
        };
        let zones =
            zones.iter().zip(fields.iter().skip(1)).enumerate().map(zone).collect::<Result<Vec<_>, _>>()?;
        SimulationInput::new(id, zones).map_err(|error| InputError { at: Some((self.number, 1)), ..error })
    }

    /// The column of a word in a field, or of the field for an empty word.
    fn column(&self, field: usize, word: &str) -> usize {
        let (mut quoted, mut separators) = (false, 0);
        let start = self.text.find(|letter: char| {
            quoted ^= letter == '"';
            separators += usize::from(letter == ',' && !quoted);
            separators == field
        });
        let rest = &self.text[start.map_or(0, |at| at + 1)..];
        let blanks = rest.len() - rest.trim_start_matches([' ', '\t', '"']).len();
        let before =
            self.text.len() - rest.len() + rest.find(word).filter(|_| !word.is_empty()).unwrap_or(blanks);
        self.text[..before].chars().count() + 1
    }
}

/// The first two numbers of a cell; the rest is ignored, as in the public tool. An error names the word.
fn counts(cell: &str) -> Result<(u64, u64), (&str, String)> {
    let mut words = cell.split_whitespace();
    let mut next = |what: &str| match words.next() {
        Some(word) => count(word, what).map_err(|reason| (word, reason)),
        None => Err(("", format!("the number of {what} is missing: write \"<nodes> <endpoints>\""))),
    };
    Ok((next("nodes")?, next("endpoints")?))
}

fn count(word: &str, what: &str) -> Result<u64, String> {
    match word.parse::<i128>() {
        Ok(number) if number < 0 => Err(format!("{word} {what}: must not be negative")),
        Ok(number) => match u64::try_from(number).ok().filter(|n| *n <= LARGEST_COUNT) {
            Some(count) => Ok(count),
            None => Err(format!("{word} {what}: the maximum is {LARGEST_COUNT}")),
        },
        Err(_) => Err(format!("{word:?} is not a whole number of {what}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<String>, Vec<String>) {
        let (inputs, errors) = parse(text);
        let show = |i: &SimulationInput| {
            let zones = i.zones().iter().map(|z| format!("{} {}/{}", z.name, z.nodes, z.endpoints));
            format!("{}: {}", i.id(), zones.collect::<Vec<_>>().join(", "))
        };
        (inputs.iter().map(show).collect(), errors.iter().map(InputError::to_string).collect())
    }

    #[test]
    fn header_names_are_trimmed_and_zones_sorted_by_bytes() {
        let (inputs, errors) = read("name, zone2 ,zone10\r\n  a b ,1 2, 3  4 99\n\n\"q,\"\"x\",\"0 0\",5 6");
        assert_eq!(inputs, ["a b : zone10 3/4, zone2 1/2", "q,\"x: zone10 5/6, zone2 0/0"]);
        assert!(errors.is_empty(), "{errors:?}");
    }

    #[test]
    fn malformed_lines_are_reported_with_line_and_column_and_the_others_count() {
        let text = "name,z1,z2\nok,1 2,3 4\nshort,1 2\nneg,1 -2,3 4\nword,1 x,1 1\none,1 2,3\nhuge,1 99999999999,1 1\n\"a,b\",1 2,\"1 y\"\nalso ok,5 5,5 5\n";
        let (inputs, errors) = read(text);
        assert_eq!(inputs, ["ok: z1 1/2, z2 3/4", "also ok: z1 5/5, z2 5/5"]);
        let starts = [
            "line 3, column 1: short: 2 columns",
            "line 4, column 7: neg: -2 endpoints",
            "line 5, column 8: word: \"x\" is not",
            "line 6, column 9: one: the number of endpoints is missing",
            "line 7, column 8: huge: 99999999999 endpoints",
            "line 8, column 14: a,b: \"y\" is not",
        ];
        assert_eq!(errors.len(), starts.len());
        for (found, start) in errors.iter().zip(starts) {
            assert!(found.starts_with(start), "{found}");
        }
    }

    #[test]
    fn an_unclosed_quote_costs_one_line() {
        let (inputs, errors) = read("name,z1\n\"open,1 2\nfine,3 4\n");
        assert_eq!(inputs, ["fine: z1 3/4"]);
        assert_eq!(errors, ["line 2, column 1: unclosed quote"]);
    }

    #[test]
    fn inputs_without_zones_or_with_duplicate_zones_are_rejected() {
        assert!(read("name\na\n").1[0].contains("no zones"));
        assert!(read("name,z,z\na,1 1,1 1\n").1[0].contains("duplicate zone z"));
        assert!(read("").1[0].contains("no header"));
    }
}
