//! A report as one page of HTML that needs nothing else: no script, no font, no picture from elsewhere. It is well-formed XML as
//! well. The page of a benchmark is made here; the demo makes its own of the same parts.

mod of_bench;

use std::time::SystemTime;

use askama::Template;
use time::OffsetDateTime;

use crate::plot::Picture;
use crate::table::{Align, Column, Table};

/// Rows of a table that are shown at once; of a longer one only its heading, until it is opened.
const ROWS_SHOWN_MAX: usize = 12;

/// What a page says.
#[derive(Clone, Debug)]
pub struct Page {
    /// What was run, above the title: `Sealane demo`.
    pub kind: String,
    /// What was moved or measured, between whom, over what.
    pub title: String,
    /// One sentence with the result; what stands in a failed run's report is what was seen until then.
    pub result: String,
    /// Why the run failed, if it did.
    pub failure: Option<String>,
    /// The command line that made it, as a shell takes it.
    pub command: String,
    /// When it was made.
    pub made: SystemTime,
    /// The most important figures.
    pub highlights: Vec<Highlight>,
    /// The rest, in order.
    pub sections: Vec<Section>,
}

/// A figure of the first glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Highlight {
    /// Which figure.
    pub label: String,
    /// With as many digits as it deserves.
    pub value: String,
    /// Its unit; empty where it has none.
    pub unit: String,
}

impl Highlight {
    /// A figure in a unit.
    pub fn new(label: &str, value: impl Into<String>, unit: &str) -> Highlight {
        Highlight { label: label.to_owned(), value: value.into(), unit: unit.to_owned() }
    }
}

/// A part of a page with a heading.
#[derive(Clone, Debug)]
pub struct Section {
    heading: String,
    text: String,
    figure: Option<Picture>,
    tables: Vec<Table>,
}

impl Section {
    /// A section with a text of a sentence or two, which may be empty.
    pub fn new(heading: &str, text: impl Into<String>) -> Section {
        Section { heading: heading.to_owned(), text: text.into(), figure: None, tables: Vec::new() }
    }

    /// With a picture, and the numbers behind it.
    pub fn picture(self, picture: &Picture) -> Section {
        Section { figure: Some(picture.clone()), ..self }
    }

    /// With a table, unless it is empty.
    pub fn table(mut self, table: Table) -> Section {
        self.tables.extend((!table.is_empty()).then_some(table));
        self
    }

    /// With a table of facts: names and what they are.
    pub fn facts(self, facts: impl IntoIterator<Item = (impl Into<String>, String)>) -> Section {
        let rows = facts.into_iter().map(|(name, fact)| vec![name.into(), fact]);
        self.table(Table::new([Column::text("what"), Column::text("is")], rows))
    }

    /// Whether there is nothing in it to look at.
    fn is_empty(&self) -> bool {
        self.figure.is_none() && self.tables.is_empty()
    }

    fn all_tables(&self) -> Vec<Table> {
        self.figure.iter().map(Picture::numbers).chain(self.tables.iter().cloned()).collect()
    }

    /// The picture for wide and for narrow screens.
    fn elements(&self) -> Option<[String; 2]> {
        self.figure.as_ref().map(|figure| figure.elements(&self.heading))
    }
}

/// The template's view of a page.
#[derive(Template)]
#[template(path = "report.html")]
struct View<'a> {
    page: &'a Page,
    made: String,
    version: &'static str,
}

impl Page {
    /// The whole file.
    pub fn to_html(&self) -> String {
        let view = View { page: self, made: utc(self.made), version: env!("CARGO_PKG_VERSION") };
        let mut html = view.render().expect("a template of texts and numbers can be filled in");
        // Such characters may stand in no document; they could come from a command line or an error.
        html.retain(|character| character == '\n' || !(character.is_control() || is_no_character(character)));
        html
    }
}

/// The date and the time, to the second, wherever the reader is: `2025-11-20 20:03:11 UTC`.
fn utc(moment: SystemTime) -> String {
    let moment = OffsetDateTime::from(moment);
    let (hour, minute, second) = moment.to_hms();
    format!("{} {hour:02}:{minute:02}:{second:02} UTC", moment.date())
}

fn is_no_character(character: char) -> bool {
    matches!(character, '\u{fffe}' | '\u{ffff}')
}

impl Table {
    fn is_long(&self) -> bool {
        self.rows.len() > ROWS_SHOWN_MAX
    }

    /// The class of the table: one of many columns leaves each text some room, and is scrolled where there is not enough for all.
    fn kind(&self) -> &'static str {
        if self.columns.len() > 2 { "many" } else { "few" }
    }

    /// The class of a column's cells.
    fn class(&self, column: &usize) -> &'static str {
        match self.columns[*column].align {
            Align::Left => "text",
            Align::Right => "number",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::sample::round_trip_histogram;

    const NASTY: &str = "<script>alert('x')</script> & \"]]>\" \u{7}\u{1b}\u{ffff}";

    /// The page as a document, which it is only if it is well formed.
    pub(crate) fn parsed(html: &str) -> roxmltree::Document<'_> {
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        roxmltree::Document::parse_with_options(html, options).unwrap_or_else(|error| panic!("{error}\n{html}"))
    }

    /// All of its texts, with one space between two words.
    pub(crate) fn text_of(document: &roxmltree::Document<'_>) -> String {
        let texts = document.descendants().filter(|node| node.is_text());
        let shown = texts.filter(|node| node.parent().is_none_or(|parent| !parent.has_tag_name("style")));
        let words = shown.filter_map(|node| node.text()).flat_map(str::split_whitespace);
        words.collect::<Vec<_>>().join(" ")
    }

    fn page(word: &str, failure: Option<&str>) -> Page {
        let mut times = round_trip_histogram();
        times.saturating_record(6_400);
        let picture = Picture::Percentiles {
            what: word.to_owned(),
            counted: word.to_owned(),
            curves: vec![(word.to_owned(), times)],
        };
        let row = |number: usize| vec![word.to_owned(), number.to_string()];
        let long = Table::new([Column::text(word), Column::number("GB/s")], (0..=ROWS_SHOWN_MAX).map(row));
        Page {
            kind: word.to_owned(),
            title: word.to_owned(),
            result: word.to_owned(),
            failure: failure.map(str::to_owned),
            command: word.to_owned(),
            made: UNIX_EPOCH + Duration::from_secs(1_763_668_991),
            highlights: vec![Highlight::new(word, word, word)],
            sections: vec![
                Section::new(word, word).picture(&picture).table(long),
                Section::new("Machine", "").facts([("CPU", word.to_owned())]),
            ],
        }
    }

    #[test]
    fn a_page_is_one_well_formed_file_that_asks_for_nothing_else() {
        let html = page("word", None).to_html();
        let document = parsed(&html);
        assert_eq!(document.root_element().attribute("lang"), Some("en"));
        for node in document.descendants().filter(roxmltree::Node::is_element) {
            let name = node.tag_name().name();
            assert!(!["script", "link", "img", "iframe", "object", "image", "use"].contains(&name), "{name}");
            for attribute in node.attributes() {
                assert!(!["src", "href", "style", "onload", "onclick"].contains(&attribute.name()), "{attribute:?}");
            }
        }
        assert!(!html.contains("url(") && !html.contains("@import"));
        let text = text_of(&document);
        assert!(text.contains("2025-11-20 20:03:11 UTC"), "{text}");
        assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
        // A wide and a narrow plot, and the numbers of both in one table.
        assert_eq!(
            document.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "svg"))).count(),
            2
        );
        assert_eq!(document.descendants().filter(|node| node.has_tag_name("table")).count(), 3);
        assert_eq!(document.descendants().filter(|node| node.has_tag_name("details")).count(), 1, "the long table");
    }

    #[test]
    fn markup_and_control_characters_in_texts_are_harmless() {
        let html = page(NASTY, Some(NASTY)).to_html();
        let document = parsed(&html);
        assert!(!document.descendants().any(|node| node.has_tag_name("script")));
        let text = text_of(&document);
        // Kind, title, result, failure, command and so on: all are there, as texts.
        assert!(text.matches("<script>alert('x')</script> & \"]]>\"").count() > 12, "{text}");
        assert!(!html.chars().any(|character| character == '\u{7}' || character == '\u{ffff}'));
    }

    #[test]
    fn a_moment_has_its_date_and_time() {
        assert_eq!(utc(UNIX_EPOCH), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(951_782_399)), "2000-02-28 23:59:59 UTC");
    }

    #[test]
    fn a_failure_comes_first() {
        let text = |html: &str| text_of(&parsed(html));
        let failed = text(&page("word", Some("ps0:2222 failed in step 1")).to_html());
        let (before, _) = failed.split_once("ps0:2222 failed in step 1").expect("it is there");
        assert!(before.ends_with("It failed. "), "{failed}");
        assert!(!text(&page("word", None).to_html()).contains("It failed"));
    }
}
