"""The penalty in other people's trainers: one thin file per framework."""
