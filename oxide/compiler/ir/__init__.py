"""The portable IR, which both back ends compile: its classes, its parser, and the passes and checks that both share."""
