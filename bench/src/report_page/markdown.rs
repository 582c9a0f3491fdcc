//! A page as Markdown, which a repository shows. Its pictures are files beside it.

use std::fmt::Write;

use super::Page;
use super::when::utc;
use crate::table::in_markdown;

impl Page {
    /// The page as Markdown; `picture` says where the picture of the section of that number is, from the place of the file.
    /// Numbers behind a picture that no table has stay in the HTML.
    pub fn to_markdown(&self, picture: impl Fn(usize) -> String) -> String {
        let mut text = format!("# {}\n\n{}\n", in_markdown(&self.title), in_markdown(&self.result));
        let mut add = |block: std::fmt::Arguments<'_>| text.write_fmt(block).expect("a String takes all");
        add(format_args!("\n```sh\n{}\n```\n\nMeasured until {}.\n", self.command, utc(self.made)));
        for (number, section) in self.sections.iter().enumerate() {
            add(format_args!("\n## {}\n", in_markdown(&section.heading)));
            if !section.text.is_empty() {
                add(format_args!("\n{}\n", in_markdown(&section.text)));
            }
            if !section.commands.is_empty() {
                add(format_args!("\n```sh\n{}\n```\n", section.commands.join("\n")));
            }
            if section.figure.is_some() {
                add(format_args!("\n![{}]({})\n", section.heading, picture(number)));
            }
            for table in &section.tables {
                add(format_args!("\n{}", table.to_markdown()));
            }
            for note in &section.notes {
                add(format_args!("\n{}\n", in_markdown(note)));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::Section;
    use super::*;
    use crate::plot::{Picture, Row};
    use crate::spread::Spread;
    use crate::table::{Column, Table};

    #[test]
    fn a_page_in_markdown_has_all_but_the_drawing() {
        let row = Row { name: "sealane".to_owned(), spread: Spread { median: 2.0, min: 1.0, max: 3.0 } };
        let table =
            Table::new([Column::text("system"), Column::number("GB/s")], [vec!["a|b".to_owned(), "2".to_owned()]]);
        let section = Section::new("How fast", "Very.").commands(vec!["sealane bench".to_owned()]).table(table);
        let section = section.illustration(Picture::bars("GB/s", vec![row])).note("No more.");
        let page = Page {
            kind: "kind".to_owned(),
            title: "Title".to_owned(),
            result: "Result.".to_owned(),
            failure: None,
            command: "make".to_owned(),
            made: UNIX_EPOCH,
            highlights: Vec::new(),
            sections: vec![Section::new("First", ""), section],
        };
        let expected = "# Title\n\nResult.\n\n```sh\nmake\n```\n\nMeasured until 1970-01-01 00:00:00 UTC.\n\n## First\n\n## How fast\n\nVery.\n\n\
                        ```sh\nsealane bench\n```\n\n![How fast](1.svg)\n\n| system | GB/s |\n|---|---:|\n| a\\|b | 2 |\n\nNo more.\n";
        assert_eq!(page.to_markdown(|number| format!("{number}.svg")), expected);
    }
}
