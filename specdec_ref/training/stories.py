"""Little stories, composed by a grammar of our own: what the tiny family learns to write.

A model of a few million parameters cannot learn to write from half a million tokens of a larger one's prose: it takes
the words and misses the sense. It can learn a small world. So these stories have few words, and much that hangs
together over many sentences: who it is about, what was lost, where it lay, who helped. A draft has to carry that too.

Every story is a function of its number alone, and there are far more of them than any model will read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

GIRLS = ("Lily", "Mia", "Anna", "Rosa", "Ella", "Nora", "Zoe", "Ada", "Maya", "Ines", "Lucy", "Hana", "Olga", "Vera")
BOYS = ("Tom", "Ben", "Max", "Leo", "Sam", "Finn", "Otto", "Hugo", "Omar", "Ivan", "Paul", "Jack", "Emil", "Ravi")
ANIMALS = ("fox", "bear", "rabbit", "mouse", "crow", "duck", "hedgehog", "squirrel", "goat", "cat", "frog", "turtle")
HELPERS = ("grandmother", "grandfather", "brother", "sister", "father", "mother", "neighbour", "teacher", "cousin")
THINGS = (
    "red ball", "blue kite", "silver key", "little drum", "wooden boat", "green hat", "yellow scarf", "toy train",
    "paper crown", "torn map", "golden button", "warm blanket", "small bell", "picture book", "striped umbrella",
    "tin whistle", "glass marble", "woolly glove", "brass lamp", "straw basket",
)  # fmt: skip
PLACES = (
    "garden", "park", "forest", "meadow", "harbour", "market", "library", "farm", "beach", "village square",
    "school yard", "old mill", "orchard", "river bank", "mountain path", "train station",
)  # fmt: skip
SPOTS = (
    "under a bench", "behind a tall tree", "in the long grass", "next to the well", "on top of a wall",
    "in a hollow log", "between two stones", "beside the gate", "at the foot of the stairs", "inside an empty barrel",
)  # fmt: skip
FOODS = (
    "apple pie", "honey bread", "vegetable soup", "berry cake", "cheese", "pancakes", "plum jam", "warm milk",
    "ginger biscuits", "roasted nuts",
)  # fmt: skip
WEATHER = ("sunny", "windy", "rainy", "cold", "warm", "foggy", "bright", "cloudy", "snowy")
TIMES = ("morning", "afternoon", "evening")
FEELINGS = ("happy", "proud", "glad", "thankful", "full of joy")
TRAITS = ("small", "curious", "shy", "brave", "quiet", "cheerful", "clever", "kind", "stubborn", "sleepy")

OPTIONS: Mapping[str, Sequence[str]] = {
    "helper": HELPERS,
    "thing": THINGS,
    "place": PLACES,
    "spot": SPOTS,
    "food": FOODS,
    "weather": WEATHER,
    "time": TIMES,
    "feeling": FEELINGS,
    "trait": TRAITS,
}

BEGINNINGS = (
    "Once upon a time there was a {trait} {kind} named {hero}.",
    "There once was a {trait} {kind} whose name was {hero}.",
    "{hero} was a {trait} {kind} who lived near the {place}.",
    "In a house near the {place} lived a {trait} {kind} called {hero}.",
    "This is the story of {hero}, a {trait} {kind}.",
)
MORNINGS = (
    "One {weather} {time}, {hero} went to the {place}.",
    "One {weather} {time}, {he} walked to the {place} with {his} {helper}.",
    "On a {weather} {time}, {hero} wanted to play in the {place}.",
    "It was a {weather} {time}, and {hero} was on {his} way to the {place}.",
    "Every {time}, {hero} liked to visit the {place}, and that day it was {weather}.",
)

# Each plot is a list of steps, and each step a choice of sentences.
PLOTS: Sequence[Sequence[Sequence[str]]] = (
    (  # something is lost and found
        (
            "{He} took {his} {thing} along.",
            "{He} had {his} {thing} with {him}.",
            "In {his} hand {he} held {his} {thing}.",
        ),
        (
            "But when {he} looked again, the {thing} was gone!",
            "After a while {he} noticed that the {thing} was missing.",
            "Suddenly the {thing} was nowhere to be seen.",
        ),
        (
            "{hero} was very sad and began to cry.",
            '"Oh no, where is my {thing}?" said {hero}.',
            "{hero} searched and searched, but could not find it.",
        ),
        (
            "Then a {friend} came by and asked what was wrong.",
            'A {friend} heard this and said, "I will help you."',
            "Luckily a {friend} had seen everything.",
        ),
        (
            "Together they looked everywhere in the {place}.",
            "The {friend} and {hero} looked left and right.",
            "They searched the whole {place} together.",
        ),
        (
            "At last they found the {thing} {spot}.",
            "And there it was: the {thing} lay {spot}!",
            'The {friend} pointed and said, "Look, your {thing} is {spot}!"',
        ),
        (
            '"Thank you, {friend}," said {hero}, and they shared some {food}.',
            "{hero} thanked the {friend} and gave it some {food}.",
            "From that day on, {hero} and the {friend} were friends.",
        ),
    ),
    (  # somebody is stuck
        (
            "There {he} heard a small voice crying for help.",
            "Somewhere in the {place} somebody was calling.",
            "Suddenly {he} heard a strange sound.",
        ),
        (
            "It was a {friend} that was stuck {spot}.",
            "A little {friend} sat {spot} and could not get out.",
            "{He} found a {friend} {spot}, and it looked afraid.",
        ),
        (
            '"Do not worry, I will get you out," said {hero}.',
            '"Please help me," said the {friend}, "I am so tired."',
            "{hero} thought about what to do.",
        ),
        (
            "{He} ran home and came back with a {thing}.",
            "Then {he} had an idea: {his} {thing} could help!",
            "{He} asked {his} {helper}, who brought a {thing}.",
        ),
        (
            "With the {thing} {he} pulled, and pulled, and the {friend} was free.",
            "{He} used the {thing} to make the gap wider, and out came the {friend}.",
            "Slowly and carefully {he} set the {friend} free with the {thing}.",
        ),
        (
            'The {friend} jumped for joy and said, "You are my hero!"',
            "The {friend} was so {feeling} that it danced around {hero}.",
            '"I will never forget this," said the {friend}.',
        ),
    ),
    (  # two want the same thing
        (
            "In the {place} {he} met a {friend} who was playing with a {thing}.",
            "A {friend} was already there, and it had a wonderful {thing}.",
            "There {he} saw a {friend} with a {thing}.",
        ),
        (
            '"I want to play with the {thing} too," said {hero}.',
            "{hero} wished {he} had a {thing} like that.",
            '"May I have your {thing}?" asked {hero}.',
        ),
        (
            '"No, it is mine," said the {friend}, and turned away.',
            "But the {friend} did not want to share the {thing}.",
            "The {friend} held the {thing} tight and shook its head.",
        ),
        (
            "So {hero} went home and came back with some {food}.",
            "{hero} opened {his} bag and took out some {food}.",
            "Then {hero} remembered the {food} that {his} {helper} had made.",
        ),
        (
            '"Would you like some {food}?" {he} asked.',
            "{He} gave half of the {food} to the {friend}.",
            '"We can share this," said {hero}.',
        ),
        (
            "The {friend} smiled, and they took turns with the {thing}.",
            "Then the {friend} said that they could both play with the {thing}.",
            "They ate the {food}, and then they played with the {thing} until the sun went down.",
        ),
    ),
    (  # afraid at first
        (
            "But {hero} was afraid of the dark and of the deep water.",
            "{hero} had never been there alone, and {he} was afraid.",
            "{hero} did not dare to go on, because it was so quiet there.",
        ),
        (
            '"What if something happens?" {he} said to {his} {helper}.',
            '"I cannot do this," {he} thought.',
            "{His} knees began to shake.",
        ),
        (
            '{His} {helper} smiled and gave {him} a {thing}. "This will help you," said the {helper}.',
            '"Take this {thing}," said {his} {helper}, "and you will not be afraid."',
            "So {his} {helper} gave {him} a {thing} to hold.",
        ),
        (
            "{hero} took one step, and then another.",
            "With the {thing} in {his} hand, {hero} went on.",
            "{hero} held the {thing} and counted to ten.",
        ),
        (
            "And what did {he} see? Only a {friend} that wanted to play!",
            "Behind the trees there was only a {friend}, and it was afraid too.",
            "A {friend} came out of the shadows and said hello.",
        ),
        (
            '"You are very brave," said {his} {helper}.',
            "{hero} laughed, and was never afraid of the {place} again.",
            "Now {hero} knew that {he} could do it, even without the {thing}.",
        ),
    ),
    (  # making something
        (
            "{He} wanted to make some {food} for {his} {helper}.",
            "It was the birthday of {his} {helper}, and {he} wanted to make {food}.",
            "{hero} and {his} {helper} were going to make {food} that day.",
        ),
        (
            "But there was nothing left in the kitchen.",
            "But {he} did not know how to begin.",
            "But first {he} needed somebody to help.",
        ),
        (
            "So {he} asked a {friend} that lived in the {place}.",
            "A {friend} from the {place} knew what to do.",
            'A {friend} knocked at the door and said, "I can help you."',
        ),
        (
            "The {friend} brought all they needed in a {thing}.",
            'The {friend} said, "Give me your {thing}, and I will bring you all you need."',
            "They mixed, and stirred, and waited, and the {friend} told a story about a {thing}.",
        ),
        (
            "Soon the whole house smelled of {food}.",
            "When all was ready, everybody came to the table.",
            "They had never made such good {food} before.",
        ),
        (
            "{His} {helper} was very {feeling}.",
            '"This is the best {food} in the world," said the {helper}.',
            "They ate together, and the {friend} got the biggest piece.",
        ),
    ),
    (  # a storm comes
        (
            "Then the sky turned dark, and a storm came.",
            "All at once it began to rain and to blow.",
            "Soon there was thunder over the {place}.",
        ),
        (
            "{hero} looked for a dry place and hid {spot}.",
            "{He} ran as fast as {he} could and sat down {spot}.",
            "{hero} crept {spot} and waited.",
        ),
        (
            "A wet {friend} was already sitting there.",
            "There sat a {friend}, cold and wet.",
            "A {friend} came running and asked if there was room for two.",
        ),
        (
            '"Come, we will keep each other warm," said {hero}, and gave the {friend} {his} {thing}.',
            "{hero} put {his} {thing} over both of them.",
            "{hero} had only a {thing} and some {food}, but {he} shared both.",
        ),
        (
            "They told each other stories until the rain stopped.",
            "They sang a song, and the storm did not seem so loud any more.",
            "They ate some {food} and listened to the wind.",
        ),
        (
            "When the sun came out, the {friend} gave back the {thing} and said thank you.",
            "At last there was a rainbow over the {place}.",
            "Then {his} {helper} came and took them both home.",
        ),
    ),
)  # fmt: skip
ENDINGS = (
    "That night {hero} fell asleep with a smile.",
    "{hero} was {feeling} and went home.",
    "And so {hero} learned that it is good to have a friend.",
    "{His} {helper} was very proud of {him}.",
    "When {he} came home, {his} {helper} had made some {food}.",
    "And they all lived happily ever after.",
    "It had been a {weather} day, and a good one.",
    "{hero} never forgot that {time}.",
)


def story(number: int, seed: int = 0) -> str:
    """Return story `number` of the collection that `seed` stands for."""
    luck = np.random.default_rng([seed, number])

    def pick(options: Sequence[T]) -> T:
        return options[int(luck.integers(len(options)))]

    girl = bool(luck.integers(2))
    kind = ("girl" if girl else "boy") if luck.integers(4) else pick(ANIMALS)  # three heroes in four are children
    words = {
        "hero": pick(GIRLS if girl else BOYS),
        "kind": kind,
        "friend": pick([animal for animal in ANIMALS if animal != kind]),
        **{name: pick(options) for name, options in OPTIONS.items()},
    }
    pronouns = {"he": "she", "his": "her", "him": "her"} if girl else {"he": "he", "his": "his", "him": "him"}
    words |= pronouns | {name.capitalize(): word.capitalize() for name, word in pronouns.items()}
    steps: list[Sequence[str]] = [BEGINNINGS, MORNINGS, *pick(PLOTS), ENDINGS]
    return " ".join(pick(step) for step in steps).format(**words)
