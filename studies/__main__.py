"""`python -m studies PAPER COMMAND`: the papers' figures and tables, counted anew, and the studies at our scale."""

from __future__ import annotations

import importlib
import sys

import click

from polyhead import __version__
from polyhead.cli.main import main as run

PAPERS = {
    "du2020": "Du et al. 2020: many tasks over frozen features of one encoder.",
    "wei2021": "Wei et al. 2021: branches of a frozen trunk, merged into one model.",
    "huang2022": "Huang et al. 2022: all tasks in one pass, by prompts.",
    "aghajanyan2021": "Aghajanyan et al. 2021: pre-finetuning on many tasks.",
    "stickland2019": "Stickland and Murray 2019: functions of each task's own in one encoder.",
    "defaults": "Polyhead's defaults beside simple baselines.",
    "codecs": "Features of every token in few bytes, and one vector a document beside them.",
    "similarity": "Questions that no task of a bundle answers: how good and how coherent answers by similarity are.",
    "sample": "The packaged sample: its tasks in five folds, beside simple baselines.",
    "gpu": "The studies with whole training sets, on one graphics card.",
    "claims": "Print every claim of the results files: refuted ones first, then those that are not shown.",
}
# module -> what it makes; the modules are scripts with arguments of their own (`--help` lists them)
RUNS = {
    "du2020.run_leave_out": "Train and score tables 3 and 4 at our scale.",
    "du2020.run_sweep": "Train and score the sweep of layers and codecs.",
    "du2020.run_poolers": "Train and score poolers and codecs on two tasks, and cosine on a third.",
    "wei2021.run": "Train and score branches of every depth, students and searches.",
    "wei2021.run_searched": "Train and score branches and full fine-tuning that each search their rate.",
    "wei2021.run_joint": "Train and score the MT-DNN rows of table 2.",
    "huang2022.run": "Train and score prompts and their baselines.",
    "huang2022.run_glue": "Train and score the same on eight tasks of GLUE.",
    "aghajanyan2021.run": "Train trunks on many tasks, and score them on tasks they never saw.",
    "aghajanyan2021.run_summaries": "Train a small BART on summaries, alone and in a mixture.",
    "stickland2019.run": "Train and score functions of each task's own, and the ways of drawing batches.",
    "defaults.run": "Score the defaults and simple baselines on twenty data sets.",
    "codecs.run": "Score codecs at equal bytes on five TweetEval tasks, by paired seeds.",
    "codecs.run_vector": "Score one vector a document against every token at one bit.",
    "similarity.run": "Score answers by similarity on five sets, whole test splits.",
    "similarity.run_jevbench": "Run a conformance suite and a benchmark of coherence against a server.",
    "defaults.run_entities": "Score entities learned from few sentences, and full fine-tuning.",
    "defaults.run_encoders": "Score the default over a larger encoder beside the default one.",
    "defaults.run_cascade": "Score cascades of two trunks, and what they leave of the deep one's work.",
    "defaults.run_labels": "Score the default by labels a class, beside published figures without labels.",
    "defaults.run_familiar": "Score how well answers tell a task's own texts from others.",
    "defaults.run_efforts": "Score linear heads alone, and a search of five minutes, beside the default.",
    "defaults.run_calibration": "Score how sure the default is, without any command.",
    "defaults.run_setfit": "Score the default beside SetFit and logistic regression, the same encoder.",
    "defaults.run_pairs": "Score spans and choices: the default, what advise finds, and the constant answer.",
    "gpu.run": "Train and score on a card until the minutes are over; `make gpu`.",
    "gpu.run_pack": "Make what a card needs, beside the data; `make gpu-pack`.",
    "gpu.run_report": "Write the results from the rows that came back.",
    "sample.run": "Score the packaged sample's tasks in five folds, and weigh the demo.",
}


class _Papers(click.Group):
    """Imports a paper's commands when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PAPERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in PAPERS:
            return None
        if cmd_name == "claims":
            command: click.Command = importlib.import_module("studies.claims").command
        elif cmd_name in ("defaults", "codecs", "sample", "similarity", "gpu"):
            command = click.Group(cmd_name, help=PAPERS[cmd_name])
        else:
            command = importlib.import_module(f"studies.{cmd_name}.commands").command
        for module, makes in RUNS.items():
            paper, _, name = module.partition(".")
            if paper == cmd_name and isinstance(command, click.Group):
                command.add_command(_script(module, name.replace("_", "-"), makes))
        command.short_help = PAPERS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(PAPERS.items()))


def _script(module: str, name: str, makes: str) -> click.Command:
    """A command that hands its arguments to a script's `main`."""

    @click.command(
        name,
        short_help=makes,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        kept = sys.argv
        sys.argv = [f"python -m studies {module.partition('.')[0]} {name}", *arguments]
        try:
            importlib.import_module(f"studies.{module}").main()
        finally:
            sys.argv = kept

    return command


@click.group(cls=_Papers, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="studies")
def commands() -> None:
    """Figures and tables of the papers that Polyhead joins, and our own studies beside them.

    Every command names its source. Studies that train go on where they stopped.
    """


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line of `python -m studies`, with the errors and exit codes of `polyhead`."""
    run(arguments, commands, "python -m studies")


if __name__ == "__main__":
    main()
